# What commands write never takes a user's file or a device away.
. "$(dirname "$0")/lib.sh"

dir=$work/out.d
mkdir "$dir"
model=$work/model.gguf
cp "$MODEL" "$model"
ids=1,2,3
cp "$model" "$work/untouched.gguf"

# refused WORD FILE ARGUMENTS...: status 1, one line, and FILE stays as it is.
refused() {
    word=$1
    file=$2
    shift 2
    cp "$file" "$work/before"
    run 1 "$TERN" "$@"
    one_line "tern: " "$file" "$word"
    cmp -s "$file" "$work/before" || say "the file is not what it was"
}

echo "not to be lost" >"$dir/text"

# ---- files of other kinds, and --force ----
refused "is not a NumPy array; --force" "$dir/text" eval logits -m "$model" --ids $ids --out "$dir/text"
refused "is not a GGUF file; --force" "$dir/text" convert -m "$model" -o "$dir/text"
refused "is not a key conditioning file; --force" "$dir/text" doctor --calibrate -m "$model" --out "$dir/text"
refused "is not a KV plan; --force" "$dir/text" doctor --fit 64 --in 1M -m "$model" --out "$dir/text"
run 0 "$TERN" eval logits -m "$model" --ids $ids --out "$dir/text" --force
run 0 "$TERN" eval logits -m "$model" --ids $ids --out "$dir/text" # its own kind needs no word
run 2 "$TERN" doctor --force
one_line "--force belongs to --calibrate and --out"

# ---- inputs of the same run, under any name ----
ln -s "$model" "$dir/link.gguf"
ln "$model" "$dir/hard.gguf"
for to in "$model" "$dir/link.gguf" "$dir/hard.gguf"; do
    refused "this run reads it" "$to" convert -m "$model" -o "$to"
    refused "this run reads it" "$to" convert -m "$model" -o "$to" --force
    refused "this run reads it" "$to" eval logits -m "$model" --ids $ids --out "$to" --force
done
printf '1,2,3' >"$dir/ids"
refused "this run reads it" "$dir/ids" eval logits -m "$model" --ids "@$dir/ids" --out "$dir/ids" --force
cmp -s "$model" "$work/untouched.gguf" || say "the model is not what it was"

# ---- a chat ----
# chat_says WORD STATUS FILE OPTION: /save FILE ends so, and with WORD in a message.
chat_says() {
    run_with_input "$2" "hi
/save $3
" "$TERN" chat -m "$model" -n 2 --temp 0 $4
    grep -qF -e "$1" "$err" || say "stderr does not mention: $1"
}
echo "important" >"$dir/important.txt"
chat_says "is not a session; --force" 1 "$dir/important.txt" ""
same "$(cat "$dir/important.txt")" "important" "a text under /save"
[ ! -e "$dir/important.txt.turns.json" ] || say "half a session"
chat_says "this run reads it" 1 "$model" --force
cmp -s "$model" "$work/untouched.gguf" || say "the model is not what it was"
echo "notes" >"$dir/s.turns.json"
chat_says "is not the turns of a tern chat" 1 "$dir/s" ""
[ ! -e "$dir/s" ] || say "half a session"
chat_says "saved" 0 "$dir/s" --force
chat_says "saved" 0 "$dir/s" ""

# ---- devices, folders ----
if mknod "$dir/null" c 1 3 2>/dev/null && : 2>/dev/null >"$dir/null"; then
    for c in "eval logits --ids $ids --out" "convert -o" "doctor --calibrate --out"; do
        # shellcheck disable=SC2086
        "$TERN" $c "$dir/null" -m "$model" >"$out" 2>"$err" </dev/null
        [ -c "$dir/null" ] || say "$c: the device is gone"
        rm -f "$dir/null"
        mknod "$dir/null" c 1 3
    done
    run 0 "$TERN" eval logits -m "$model" --ids $ids --out "$dir/null"
    chat_says "is no regular file" 1 "$dir/null" --force
    [ -c "$dir/null" ] || say "/save: the device is gone"
    [ ! -e "$dir/null.turns.json" ] || say "turns beside a device"
    run 0 "$TERN" run -m "$model" -p x -n 1 --packed "$dir/null"
    [ -c "$dir/null" ] || say "--packed: the device is gone"
else
    echo "skipped: device nodes (they cannot be made here)"
fi
run 1 "$TERN" convert -m "$model" -o "$dir"
one_line "is a directory"

finish
