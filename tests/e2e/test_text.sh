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

# Bytes that are not UTF-8 are told of; what the vocabulary does not have is said to be lost.
printf 'a\377b\303' >"$work/bytes"
bytes() {
    command_line="tern tokenize -m $1 <bytes"
    checks=$((checks + 1))
    "$TERN" tokenize -m "$1" --ids <"$work/bytes" >"$out" 2>"$err" || say "status"
}
bytes "$MODEL"
one_line "standard input: 2 bytes are not UTF-8, the first (0xff) at offset 1"
grep -q 'left out' "$err" && say "nothing is lost"
same "$(cat "$out")" "97,255,98,195" "ids of the bytes"
bytes "$BASE_MODEL"
one_line "2 bytes are not UTF-8" "for some of them the vocabulary has no tokens, they are left out"
same "$(cat "$out")" "97,98,195" "ids of what is left"
printf 'a\377b' >"$work/bytes"
bytes "$BASE_MODEL"
one_line "1 byte is not UTF-8" "no tokens for them, they are left out"
run 0 "$TERN" run -m "$BASE_MODEL" --raw -f "$work/bytes" -n 1
grep -q 'the prompt: 1 byte is not UTF-8' "$err" || say "tell of it in a prompt"

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
same "$(json tensor_types.F32.n_tensors)" 30 "tensor types"
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
same "$(json kv.full_bytes)" 250880 "bytes of a full context, whole pages and raw tokens included"
run 0 "$TERN" eval logits -m "$windowed" --ids 1,2,3 --out "$work/x.npy"
one_line "KV plan differs" "layers 0-4" "f16" "window"
run 1 "$TERN" eval logits -m "$windowed" --ids 1,2,3 --out "$work/y.npy" --kv-policy strict
one_line "window"
[ ! -e "$work/y.npy" ] || say "a refused command left a file"

# ---- items of a plan that change nothing: told, refused under strict ----
# idle WORD PLAN
idle() {
    run 0 "$TERN" inspect "$MODEL" --kv "$2"
    one_line "tern: --kv $2: " "$1" "changes nothing"
    run 0 "$TERN" inspect "$MODEL" --kv "$2" --json
    case $(json kv.notes.0) in *"$1"*) ;; *) say "a note" ;; esac
    run 0 "$TERN" run -m "$MODEL" -p x -n 1 --kv "$2"
    grep -q "changes nothing" "$err" || say "run tells it"
    run 1 "$TERN" run -m "$MODEL" -p x -n 1 --kv "$2" --kv-policy strict
    one_line "--kv-policy strict" "$1" "changes nothing"
}
idle "edge=1" f16,edge=1:f16
idle "edge=1" l4,edge=1:l4
idle "layers=1-2" l4,layers=1-2:l4
idle "first=8" f16,first=8
idle "recent=128" f16,recent=128
idle "cond=" f16,cond=off
idle "l4 changes" l4,l3
idle "k=l4 changes" k=l4,l3
for plan in l4 f16 l4,edge=1:f16 l4,layers=0:f16 k=l4,v=l3 t4,k=q8 f16,edge=1:q8 l4,first=8 l4,cond=off; do
    run 0 "$TERN" run -m "$MODEL" -p x -n 1 --kv $plan --kv-policy strict
    grep -q 'changes nothing' "$err" && say "no note for $plan"
done
run 1 "$TERN" inspect "$MODEL" --kv l4,edge=2:f16
one_line "edge=2 covers more than the model's 3 layers"

finish
