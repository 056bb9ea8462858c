# tern tokenize and tern inspect.
. "$(dirname "$0")/lib.sh"

# ---- round trips ----
round_trip() {
    for flag in "" --no-special; do
        # shellcheck disable=SC2086
        run_with_input 0 "$1" "$TERN" tokenize -m "$MODEL" --ids $flag
        cp "$out" "$work/ids"
        checks=$((checks + 1))
        command_line="tern tokenize --decode $flag, of: $1"
        # shellcheck disable=SC2086
        "$TERN" tokenize -m "$MODEL" --decode $flag <"$work/ids" >"$out" 2>"$err" || say "decode"
        printf '%s' "$1" | cmp -s - "$out" || say "give the same text back"
    done
}
round_trip "The land and the sea."
round_trip "  two  spaces, a	tab and
a line
"
round_trip "naïve café, Ελληνικά, 日本語, 🐦"
round_trip "x"
round_trip "<|im_start|>user<|im_end|>"
run_with_input 0 "" "$TERN" tokenize -m "$MODEL" --ids
same "$(cat "$out")" "" "ids of no text"
run_with_input 0 "the sea" "$TERN" tokenize -m "$MODEL" --ids
same "$(tr ',' '\n' <"$out" | wc -l)" 4 "number of tokens of: the sea"
run_with_input 0 "the sea" "$TERN" tokenize -m "$MODEL"
same "$(cut -f2 <"$out" | tr '\n' ' ')" "t he Ġse a " "tokens of: the sea"
run_with_input 0 "a<|im_end|>" "$TERN" tokenize -m "$MODEL" --ids
same "$(cat "$out")" "97,299" "a control token"
run_with_input 0 "a<|im_end|>" "$TERN" tokenize -m "$MODEL" --ids --no-special
differ "$(cat "$out")" "97,299" "--no-special"
run_with_input 0 "97 299
97" "$TERN" tokenize -m "$MODEL" --decode
same "$(cat "$out")" "a<|im_end|>a" "decoded control token"
run_with_input 0 "97,299,97" "$TERN" tokenize -m "$MODEL" --decode --no-special
same "$(cat "$out")" "aa" "decoded without control tokens"

# ---- inspect ----
run 0 "$TERN" inspect "$MODEL"
for word in llama "tiny chat" "BPE" smollm F32 "KV cache" "bytes per token" "layers 0-2"; do
    grep -qF "$word" "$out" || say "tell $word"
done
run 0 "$TERN" inspect --json "$MODEL" --kv k=q8,v=l3 --tensors
same "$(json model.arch model.n_layers model.n_kv_heads model.head_dim model.n_vocab model.ctx model.has_template)" \
    "llama
3
1
64
300
8192
true" "model facts"
same "$(json '#kv.layers' kv.spec kv.layers.0.k kv.layers.2.v kv.layers.1.reason)" "3
k=q8,v=l3
q8
l3
null" "KV plan"
same "$(json tensors.0.name tensors.0.type '#tensors')" "token_embd.weight
F32
30" "tensors"
same "$(json tensor_types.F32.count)" 30 "tensor types"
run 0 "$TERN" inspect "$BASE_MODEL" --json
same "$(json model.has_template '#kv.layers')" "false
3" "base model"
json tensors >/dev/null 2>&1 && say "list tensors unasked"
# Every committed tiny model, and a split set by either part.
for f in "$TEST_DATA"/tiny/*.gguf; do
    run 0 "$TERN" inspect "$f" --json
    same "$(json model.tokenizer)" none "tokenizer of $f"
    [ "$(json '#kv.layers')" = "$(json model.n_layers)" ] || say "one KV row per layer"
done

# ---- exceptions are told, or refused ----
# Layers with a sliding window of 8 tokens keep 16 bits: their few tokens are not worth coding.
windowed=$TEST_DATA/tiny/gemma3-w8.gguf
run 0 "$TERN" inspect "$windowed" --json
same "$(json :kv.layers.0.reason :kv.layers.5.reason)" "string
null" "reasons"
same "$(json kv.ctx_bytes)" 79872.0 "bytes of a full context" # 5 layers * 8 tokens * 256 + 1024 tokens * 68
run 0 "$TERN" eval logits -m "$windowed" --ids 1,2,3 --out "$work/x.npy"
one_line "KV plan differs" "layers 0-4" "f16" "window"
run 1 "$TERN" eval logits -m "$windowed" --ids 1,2,3 --out "$work/y.npy" --kv-policy strict
one_line "window"
[ ! -e "$work/y.npy" ] || say "a refused command left a file"

finish
