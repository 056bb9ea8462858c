# tern eval logits and tern eval ppl.
. "$(dirname "$0")/lib.sh"

tiny=$TEST_DATA/tiny

# The header of a .npy file as text.
header() {
    head -c 128 "$1" | tr -d '\000-\011\013-\037' | sed 's/^.*{/{/'
}

# ---- logits ----
run 0 "$TERN" eval logits -m "$tiny/llama-tied.gguf" --ids "@$tiny/llama-tied.ids.txt" --out "$work/all.npy" --exact
silent
n=$(tr -s ', \n' '\n\n\n' <"$tiny/llama-tied.ids.txt" | grep -c .)
vocab=$("$TERN" inspect "$tiny/llama-tied.gguf" --json | "$JSON_GET" model.n_vocab)
header "$work/all.npy" | grep -q "'shape': ($n, $vocab)" || say "the shape ($n, $vocab): $(header "$work/all.npy")"
header "$work/all.npy" | grep -q "'<f4'" || say "float32"
# The same rows, whatever the threads and steps; with --exact also as decode rows.
for o in "-t 1" "-t 3" "--chunk 5" "--decode"; do
    # shellcheck disable=SC2086
    run 0 "$TERN" eval logits -m "$tiny/llama-tied.gguf" --ids "@$tiny/llama-tied.ids.txt" --out "$work/one.npy" \
        --exact $o
    cmp -s "$work/all.npy" "$work/one.npy" || say "the same bytes with $o"
done
run 0 "$TERN" eval logits -m "$tiny/llama-tied.gguf" --ids 1,2,3 --out "$work/three.npy"
header "$work/three.npy" | grep -q "'shape': (3, $vocab)" || say "three rows"
run 0 "$TERN" eval logits -m "$tiny/llama-tied.gguf" --ids "1 , 2
3" --out "$work/blanks.npy"
cmp -s "$work/three.npy" "$work/blanks.npy" || say "ids separated by blanks"
awk 'BEGIN { for (i = 0; i < 6000; i++) print i % 100 }' >"$work/many"
interrupt "$err" 'KV plan' "$TERN" eval logits -m "$MODEL" --ids "@$work/many" --out "$work/never.npy" --decode --exact --cpu-mask c \
    -v
[ ! -e "$work/never.npy" ] || say "no array after Ctrl-C"
same "$(find "$work" -name '*tmp*')" "" "temporary files"

# ---- perplexity ----
i=0
while [ $i -lt 60 ]; do
    echo "The tern flies from one end of the world to the other and back, year after year."
    i=$((i + 1))
done >"$work/text.txt"
run 0 "$TERN" eval ppl -m "$MODEL" -f "$work/text.txt" -c 128 --json --exact
same "$(json ctx :ppl :nll :n_tokens :n_chunks kv.spec)" "128
real
real
integer
integer
f32" "--json of ppl"
exact=$(json ppl)
run 0 "$TERN" eval ppl -m "$MODEL" -f "$work/text.txt" -c 128 --json --exact -t 1
same "$(json ppl)" "$exact" "perplexity on one thread"
all=$(json n_chunks)
run 0 "$TERN" eval ppl -m "$MODEL" -f "$work/text.txt" -c 128 --json --exact --chunks "$all"
same "$(json ppl)" "$exact" "perplexity of all chunks"
run 0 "$TERN" eval ppl -m "$MODEL" -f "$work/text.txt" -c 128 --json --exact --chunks 2
same "$(json n_chunks)" 2 "the first chunks alone"
first=$(json ppl)
head -n 20 "$work/text.txt" >"$work/begin.txt"
run 0 "$TERN" eval ppl -m "$MODEL" -f "$work/begin.txt" -c 128 --json --exact --chunks 2
same "$(json ppl)" "$first" "the first two chunks, whatever follows"
run 1 "$TERN" eval ppl -m "$MODEL" -f "$work/text.txt" -c 128 --chunks $((all + 1))
one_line "text.txt: " "are $all chunks of 128, not $((all + 1)) (--chunks)"
run_with_input 0 "$(cat "$work/text.txt")" "$TERN" eval ppl -m "$MODEL" -f - -c 128 --kv l4
grep -q '^perplexity [0-9.]* ' "$out" || say "print the perplexity"
grep -q 'KV l4' "$out" || say "name the plan"

# ---- what is equal to what (ARCHITECTURE.md) ----
some=$(seq 1 150 | tr '\n' ',' | sed 's/,$//')
# logits OPTIONS...: their digest
logits() {
    command_line="tern eval logits $*"
    "$TERN" eval logits -m "$MODEL" --ids "$some" --out "$work/equal.npy" "$@" >"$out" 2>"$err" </dev/null || say "status"
    cksum <"$work/equal.npy"
}
prompt=$(logits)
for o in "-t 1" "-t 2" "--chunk 7" "--packed off"; do
    # shellcheck disable=SC2086
    same "$(logits $o)" "$prompt" "logits with $o"
done
decoded=$(logits --decode)
differ "$decoded" "$prompt" "logits of the two roles"
same "$(logits --decode -t 1)" "$decoded" "decoded logits on one thread"
exact=$(logits --exact)
same "$(logits --exact --decode)" "$exact" "logits of the two roles with --exact"
case $levels in
*avx512*)
    narrow=$(logits --cpu-mask avx2)
    wide=$(logits --cpu-mask avx512)
    same "$narrow" "$wide" "logits with AVX2 and AVX-512"
    same "$(logits --cpu-mask avx2 --exact)" "$exact" "exact logits with AVX2"
    ;;
esac

finish
