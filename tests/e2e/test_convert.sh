# tern convert: what it prints and refuses; killed, interrupted and out of room.
. "$(dirname "$0")/lib.sh"

dir=$TEST_DATA/hf/qwen3
ids=$(cat "$dir.ids.txt")

# A directory becomes a file that computes the same.
run 0 "$TERN" convert -m "$dir" -o "$work/q.gguf"
silent
one_line "tern: " "q.gguf: 13 tensors" "tokenizer none"
[ -e "$work/q.gguf.part" ] && say "leaves nothing beside the file"
run 0 "$TERN" eval logits -m "$dir" --ids "$ids" --out "$work/a.npy"
run 0 "$TERN" eval logits -m "$work/q.gguf" --ids "$ids" --out "$work/b.npy"
cmp -s "$work/a.npy" "$work/b.npy" || say "logits differ"
run 0 "$TERN" convert -m "$dir" -o "$work/q8.gguf" --type q8_0 --json
same "$(json type)" q8_0 "type in JSON"
same "$(json bytes)" "$(wc -c <"$work/q8.gguf" | tr -d ' ')" "bytes in JSON"
run 0 "$TERN" run -m "$MODEL" -p "the cat" -n 8 --temp 0
cp "$out" "$work/before"
run 0 "$TERN" convert -m "$MODEL" -o "$work/text.gguf" --type f16
run 0 "$TERN" tokenize -m "$work/text.gguf"
run 0 "$TERN" run -m "$work/text.gguf" -p "the cat" -n 8 --temp 0

run 0 "$TERN" convert -m "$MODEL" -o "$work/bare.gguf" --no-tokenizer
run 0 "$TERN" inspect "$work/bare.gguf"
grep -q "tokenizer       none" "$out" || say "no tokenizer"

# A tokenizer comes along, with its template.
mkdir "$work/m"
cp "$dir"/* "$work/m"
cat >"$work/m/tokenizer.json" <<'END'
{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "\u0120": 4, "\u0120a": 5},
           "merges": [["a", "b"], ["\u0120", "a"]]},
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "decoder": {"type": "ByteLevel"},
 "added_tokens": [{"id": 6, "content": "<end>", "special": true}]}
END
printf '{{ messages[0].content }}{{ pad_token }}!' >"$work/m/chat_template.jinja"
echo '{"pad_token": "<end>"}' >"$work/m/tokenizer_config.json"
run 0 "$TERN" convert -m "$work/m" -o "$work/m.gguf" --json
same "$(json tokenizer)" "gpt2, pre-tokenizer gpt-2" "tokenizer in JSON"
run_with_input 0 "abc a ab<end>cab" "$TERN" tokenize -m "$work/m"
cp "$out" "$work/ids"
run_with_input 0 "abc a ab<end>cab" "$TERN" tokenize -m "$work/m.gguf"
cmp -s "$out" "$work/ids" || say "other tokens"
[ "$(wc -l <"$out")" -eq 8 ] || say "eight tokens"
run 0 "$TERN" inspect "$work/m.gguf"
grep -q "chat template   yes" "$out" || say "the template comes along"
grep -q "padding_token_id" "$work/m.gguf" || say "what the template calls its tokens comes along"

# Refused in one line, before anything is written.
refused() {
    status=$1
    text=$2
    shift 2
    run "$status" "$TERN" convert "$@"
    silent
    one_line "tern: " "$text"
    [ -e "$work/x.gguf" ] && say "wrote the file"
    [ -e "$work/x.gguf.part" ] && say "left a part of the file"
}
refused 2 "--output" -m "$dir"
refused 2 "--type" -m "$dir" -o "$work/x.gguf" --type q9
refused 1 "no/model" -m "$work/no/model" -o "$work/x.gguf"
refused 1 "quantised (affine" -m "$TEST_DATA/hf/affine" -o "$work/x.gguf"
refused 1 "--allow-requantize" -m "$work/q8.gguf" -o "$work/x.gguf" --type q4_0
cp "$TEST_DATA/tokenizer/json-qwen3.json" "$work/m/tokenizer.json"
refused 1 "the tokenizer has 404 entries, the embedding has" -m "$work/m" -o "$work/x.gguf"
cp "$TEST_DATA/tokenizer/json-unigram.json" "$work/m/tokenizer.json"
refused 1 "--no-tokenizer leaves it out" -m "$work/m" -o "$work/x.gguf"
run 0 "$TERN" convert -m "$work/m" -o "$work/n.gguf" --no-tokenizer
run 0 "$TERN" convert -m "$work/q8.gguf" -o "$work/q4.gguf" --type q4_0 --allow-requantize

# A directory that takes a while: letters are finite numbers of 16 bits.
mkdir "$work/big"
rows=60000
bytes=$((rows * 256 * 2))
cat >"$work/big/config.json" <<END
{"model_type": "qwen2", "num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4,
 "max_position_embeddings": 64}
END
head="{\"model.embed_tokens.weight\": {\"dtype\": \"F16\", \"shape\": [$rows, 256], \"data_offsets\": [0, $bytes]}}"
while [ $((${#head} % 8)) -ne 0 ]; do head="$head "; done
{
    # shellcheck disable=SC2059
    printf "\\$(printf '%03o' ${#head})\0\0\0\0\0\0\0"
    printf '%s' "$head"
    yes "the quick brown fox jumps over lazy dogs" | tr -d '\n ' | head -c $bytes
} >"$work/big/model.safetensors"

# No room for it: found before the work begins.
command_line="convert without room"
(
    trap '' XFSZ
    ulimit -f 1000
    "$TERN" convert -m "$work/big" -o "$work/x.gguf" >"$out" 2>"$err"
)
same $? 1 "status without room"
silent
one_line "tern: " "no room for"
[ -e "$work/x.gguf.part" ] && say "left a part of the file without room"

sleep 4 # a source that has just changed is not recognized
run 0 "$TERN" convert -m "$work/big" -o "$work/want.gguf" --type q4_k -t 2

# Bytes that are not 0 in the journal's hashes of eight chunks, behind which eight more bytes end the file.
written() {
    tail -c 72 "$work/x.gguf.part" 2>/dev/null | head -c 64 | tr -d '\0' | wc -c
}

# Ended at a moment when a part of it is written: the same command goes on and writes the same bytes.
# gone_on SIGNAL STATUS
gone_on() {
    rm -f "$work/x.gguf"
    command_line="convert & kill -$1"
    checks=$((checks + 1))
    "$TERN" convert -m "$work/big" -o "$work/x.gguf" --type q4_k -t 1 >"$out" 2>"$err" </dev/null &
    pid=$!
    tries=0
    while [ $tries -lt 2000 ] && [ "$(written)" -eq 0 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill "-$1" $pid
    wait $pid 2>/dev/null
    same $? "$2" "status after $1"
    [ -e "$work/x.gguf" ] && say "nothing under the name before it is complete"
    [ -e "$work/x.gguf.part" ] || say "the part stays"
    run 0 "$TERN" convert -m "$work/big" -o "$work/x.gguf" --type q4_k -t 2
    grep -q "were there from an earlier run" "$err" || say "goes on"
    cmp -s "$work/x.gguf" "$work/want.gguf" || say "the bytes of a run without interruptions"
    [ -e "$work/x.gguf.part" ] && say "the part is gone"
}
gone_on KILL 137
gone_on INT 130

finish
