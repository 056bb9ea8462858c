# Things that go wrong at run time: status 1 and one line that names what is wrong.
. "$(dirname "$0")/lib.sh"

# wrong WORD ARGUMENTS...
wrong() {
    word=$1
    shift
    run 1 "$TERN" "$@"
    silent
    one_line "tern: " "$word"
}

# ---- the model file ----
wrong "$work/none.gguf" run -m "$work/none.gguf" -p x
wrong "$work" run -m "$work" -p x
: >"$work/empty.gguf"
wrong "empty.gguf" run -m "$work/empty.gguf" -p x
head -c 5000 "$MODEL" >"$work/cut.gguf"
wrong "cut.gguf" inspect "$work/cut.gguf"
echo "this is a text, not a model" >"$work/text.gguf"
wrong "text.gguf" tokenize -m "$work/text.gguf"
cp "$MODEL" "$work/secret.gguf"
chmod 000 "$work/secret.gguf"
if [ ! -r "$work/secret.gguf" ]; then # root reads everything
    wrong "secret.gguf" run -m "$work/secret.gguf" -p x
fi

# ---- the directory of a model ----
hf=$work/hf
# damaged WORD FILE COMMAND: the model with this file made by that command, or without it.
damaged() {
    rm -rf "$hf"
    cp -r "$TEST_DATA/hf/qwen2" "$hf"
    rm "$hf/$2"
    [ -z "$3" ] || eval "$3" >"$hf/$2"
    wrong "$1" inspect "$hf"
}
damaged "config.json" config.json ""
damaged "model-00002-of-00002.safetensors" model-00002-of-00002.safetensors ""
damaged "neither" model.safetensors.index.json ""
damaged "malformed JSON" config.json "echo '{\"model_type\": '"
damaged "not an object" config.json "echo '[]'"
damaged "rwkv" config.json "echo '{\"model_type\": \"rwkv\"}'"
damaged "malformed JSON" config.json "printf '\\357\\273\\277 {'"
damaged "empty" config.json "printf ''"
damaged "weight_map" model.safetensors.index.json "echo '{\"weight_map\": 1}'"
damaged "no safetensors file" model.safetensors.index.json "echo '{\"weight_map\": {\"x\": \"../../x.safetensors\"}}'"
damaged "00001-of-00002" model-00001-of-00002.safetensors "head -c 700 $TEST_DATA/hf/qwen2/model-00001-of-00002.safetensors"
damaged "header" model-00001-of-00002.safetensors "head -c 7 $TEST_DATA/hf/qwen2/model-00001-of-00002.safetensors"
damaged "not a safetensors file" model-00001-of-00002.safetensors "cat $MODEL"
damaged "00001-of-00002" model-00001-of-00002.safetensors "cat $TEST_DATA/hf/qwen2/model-00002-of-00002.safetensors"
cp -r "$TEST_DATA/hf/qwen2/." "$hf"
echo '{"temperature": ' >"$hf/generation_config.json"
wrong "generation_config.json" inspect "$hf"
rm "$hf/generation_config.json"
echo '{}' >"$hf/tokenizer.json"
wrong "tokenizer.json" inspect "$hf"
rm "$hf/tokenizer.json" "$hf/config.json"
mkfifo "$hf/config.json"
wrong "not a regular file" inspect "$hf"
rm "$hf/config.json"
ln -s config.json "$hf/config.json"
wrong "config.json" inspect "$hf"

# ---- prompts ----
wrong "nothing.txt" run -m "$MODEL" -f "$work/nothing.txt"
wrong "directory" run -m "$MODEL" -f "$work"
wrong "empty" run -m "$BASE_MODEL" --raw -p ""
wrong "template" run -m "$BASE_MODEL" -p x --system y
wrong "template" chat -m "$BASE_MODEL"
wrong "tokenizer" run -m "$TEST_DATA/tiny/llama-tied.gguf" -p x --raw
printf 'a\000b' >"$work/nul.txt"
wrong "NUL" run -m "$MODEL" -f "$work/nul.txt"
printf '\377\376a\000b\000' >"$work/wide.txt"
printf '\376\377\000a\000b' >"$work/other-end.txt"
wrong "wide.txt: is UTF-16" run -m "$MODEL" -f "$work/wide.txt"
wrong "other-end.txt: is UTF-16" run -m "$MODEL" --raw -f "$work/other-end.txt"
wrong "wide.txt: is UTF-16" eval ppl -m "$MODEL" -f "$work/wide.txt"
wrong "wide.txt: is UTF-16" eval kld -m "$MODEL" -f "$work/wide.txt"
wrong "wide.txt: is UTF-16" run -m "$MODEL" -p x --json-schema "$work/wide.txt"
i=0
while [ $i -lt 40 ]; do
    echo "a prompt of many words that goes on and on"
    i=$((i + 1))
done >"$work/long.txt"
wrong "context" run -m "$MODEL" -f "$work/long.txt" -c 64
wrong "trained" run -m "$MODEL" -p x -c 1000000

# ---- standard streams that are closed, or are no streams ----
command_line="tern run, tokenize <&-"
"$TERN" run -m "$MODEL" <&- >"$out" 2>"$err" && say "a prompt from nowhere"
one_line "standard input: Bad file descriptor"
"$TERN" tokenize -m "$MODEL" <"$work" >"$out" 2>"$err" && say "a text from a folder"
one_line "standard input: is a directory"
"$TERN" run -m "$MODEL" -p x >&- 2>"$err" && say "a text to nowhere"
one_line "cannot write to standard output: Bad file descriptor"
# Their numbers go to nothing else: no file and no connection gets what is meant for the user.
if [ -e /proc/self/fd ]; then
    mkfifo "$work/lines"
    "$TERN" chat -m "$MODEL" -n 1 <"$work/lines" >&- 2>&- &
    chat=$!
    exec 8>"$work/lines"
    tries=0
    while [ $tries -lt 200 ] && ! grep -q "$(basename "$MODEL")" "/proc/$chat/maps" 2>/dev/null; do
        sleep 0.05
        tries=$((tries + 1))
    done
    same "$(readlink "/proc/$chat/fd/1") $(readlink "/proc/$chat/fd/2")" "/dev/null /dev/null" "streams that were closed"
    exec 8>&-
    wait $chat
fi

# ---- what a program wrote is a file: a pipe of that name is not waited for ----
mkfifo "$work/pipe"
run 1 timeout 20 "$TERN" run -m "$MODEL" -p x -n 1 --kv "t4,cond=$work/pipe"
one_line "pipe: is not a regular file"
run_with_input 1 x timeout 20 "$TERN" run -m "$MODEL" -p x -n 1 --kv t4,cond=-
one_line "-: No such file"
run 1 timeout 20 "$TERN" inspect "$MODEL" --kv "plan=$work/pipe"
one_line "pipe: is not a regular file"
run 1 "$TERN" run -m "$MODEL" -p x -n 1 --kv t4,plan=
one_line "plan= wants the name of a file"
cp "$MODEL" "$work/piped.gguf"
mkfifo "$work/piped.gguf.ternkv"
run 0 timeout 20 "$TERN" run -m "$work/piped.gguf" -p x -n 1 --calibration off
grep -q "piped.gguf.ternkv: is not a regular file" "$err" || say "a pipe beside the model stops nothing"
rm "$work/piped.gguf" "$work/piped.gguf.ternkv"
rm -r "$hf"
cp -r "$TEST_DATA/hf/qwen2" "$hf"
mkfifo "$hf/tokenizer_config.json"
run 1 timeout 20 "$TERN" inspect "$hf"
one_line "tokenizer_config.json: is not a regular file"
rm "$hf/tokenizer_config.json"
ln -s /dev/null "$hf/tokenizer_config.json"
run 0 "$TERN" inspect "$hf"

# ---- the RoPE base ----
wrong "RoPE base 1 must be above 1" run -m "$MODEL" -p x --rope-base 1
run 0 "$TERN" run -m "$MODEL" -p x -n 1 --rope-base 1e12

# ---- KV plans ----
wrong "layer 9" run -m "$MODEL" -p x --kv l4,layers=9:f16

# ---- ids ----
run 2 "$TERN" convert -m "$MODEL" -o -
one_line "tern: " "name a file"
wrong "vocabulary" eval logits -m "$MODEL" --ids 1,999999 --out "$work/x.npy"
wrong "none.txt" eval logits -m "$MODEL" --ids "@$work/none.txt" --out "$work/x.npy"
wrong "no-such-dir" eval logits -m "$MODEL" --ids 1,2 --out "$work/no-such-dir/x.npy"
run_with_input 1 "5 6 x7" "$TERN" tokenize -m "$MODEL" --decode
silent
one_line "x7"
run_with_input 1 "5 999999" "$TERN" tokenize -m "$MODEL" --decode
one_line "999999"
wrong "vocabulary" run -m "$MODEL" -p x --logit-bias 999999=1
[ ! -e "$work/x.npy" ] || say "a failed command left a file"

# ---- perplexity, divergence, bench ----
echo "too short" >"$work/short.txt"
wrong "chunk" eval ppl -m "$MODEL" -f "$work/short.txt" -c 64
wrong "none.txt" eval kld -m "$MODEL" -f "$work/none.txt"
wrong "short.txt" eval kld -m "$MODEL" -f "$work/long.txt" -f "$work/short.txt" -c 64
wrong "chunks of 64, not 1000" eval kld -m "$MODEL" -f "$work/long.txt" -c 64 --chunks 1000
wrong "each of 2 texts" eval kld -m "$MODEL" -f "$work/long.txt" -f "$work/long.txt" -c 64 --chunks 1
wrong "trained" eval kld -m "$MODEL" -f "$work/long.txt" -c 1000000
wrong "two sequences" eval kld -m "$MODEL" -f "$work/long.txt" -c 64 --chunk 1
wrong "tokenizer" eval kld -m "$TEST_DATA/tiny/llama-tied.gguf" -f "$work/long.txt" -c 64
wrong "context" bench -m "$MODEL" -d 9000 -p 8 -n 1 -r 1

# ---- output ----
if [ -w /dev/full ]; then
    for c in "run -m $MODEL -p x -n 4" "run -m $MODEL -p x -n 4 --json" "inspect $MODEL" "--help" "run --help" \
        "doctor --json" "print man"; do
        command_line="tern $c >/dev/full"
        checks=$((checks + 1))
        : >"$out"
        # shellcheck disable=SC2086
        "$TERN" $c >/dev/full 2>"$err" </dev/null
        status=$?
        [ $status -eq 1 ] || say "status $status instead of 1"
        grep -q 'standard output: No space left' "$err" || say "the reason"
    done
fi
# A reader that goes away ends the text early, quietly, and is no success.
checks=$((checks + 1))
command_line="tern run | head -c 1"
: >"$out"
{
    "$TERN" run -m "$MODEL" -p x -n 8000 --ignore-eos 2>"$err"
    echo $? >"$work/status"
} | head -c 1 >/dev/null
same "$(cat "$work/status")" 1 "status after a closed pipe"
same "$(cat "$err")" "" "stderr after a closed pipe"

finish
