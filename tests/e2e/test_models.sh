# tern models, and what tools/fetch-model says without fetching a model.
. "$(dirname "$0")/lib.sh"

fetch=$(dirname "$0")/../../tools/fetch-model
mkdir "$work/models"
cd "$work" || exit 1

run 0 "$TERN" models
for word in smollm2 gemma3-270m Apache-2.0 "Gemma Terms of Use" "In models: none" "--licence NAME"; do
    grep -qF -e "$word" "$out" || say "mention $word"
done
cp "$MODEL" models/tiny.gguf
cp "$MODEL" models/smollm2-135m-instruct-q4_1.gguf
cp -r "$TEST_DATA/hf/qwen2" models/qwen
echo "no model" >models/text.gguf
mkdir models/empty
mkfifo models/pipe.gguf
run 0 "$TERN" models --json
same "$(json '#files' files.0.file files.0.container files.1.file files.2.file files.2.bytes known.0.there known.1.there)" "3
qwen
safetensors
smollm2-135m-instruct-q4_1.gguf
tiny.gguf
$(wc -c <"$MODEL")
true
false" "what is in the folder"
run 0 "$TERN" models "$work/models"
grep -q "tiny.gguf" "$out" || say "a folder that is named"
grep -q "SmolLM2.*(there)" "$out" || say "a model that is there"
run 1 "$TERN" models "$work/none"
one_line "$work/none" "No such file"
run 2 "$TERN" models a b
one_line "unexpected argument"

if command -v python3 >/dev/null 2>&1; then
    run 0 python3 "$fetch" --list
    tail -n +2 "$out" | sed 's/  */ /g' | cut -d' ' -f1 | sort >"$work/fetch"
    cp "$out" "$work/list"
    run 0 "$TERN" models --json
    { json known.0.name; json known.1.name; } | sort >"$work/tern"
    same "$(cat "$work/tern")" "$(cat "$work/fetch")" "the names that fetch-model knows"
    for i in 0 1; do
        mb="$(($(json known.$i.bytes) / 1000000)) MB" # rounded down: the list rounds to the nearest
        grep -q "$(json known.$i.licence)" "$work/list" || say "the licence of $(json known.$i.name)"
        grep -q "$(json known.$i.title)" "$work/list" || say "the title of $(json known.$i.name)"
        grep -q "$(json known.$i.file)" "$fetch" || say "the file of $(json known.$i.name)"
        grep -q "size=$(json known.$i.bytes)," "$fetch" || say "the size of $(json known.$i.name), $mb"
    done
    if [ -e /usr/share/common-licenses/Apache-2.0 ]; then
        run 0 python3 "$fetch" --licence smollm2
        grep -q "TERMS AND CONDITIONS" "$out" || say "the text of a licence"
    fi
    [ ! -e "$work/models/.smollm2.lock" ] || say "reading a licence fetches nothing"
fi
finish
