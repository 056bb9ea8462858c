# tern run: text, determinism, JSON, stopping.
. "$(dirname "$0")/lib.sh"

prompt="The sea and the land"

# ---- plain text and the line of figures ----
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24
reference=$(cat "$out")
[ -n "$reference" ] || say "print text"
one_line "prompt" "tokens" "KV 48" "48.0 KiB in 16 bits (3." "x less at 8192 tokens)" "peak memory"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 0
silent
same "$(grep -c 'text 0 tokens' "$err")" 1 "-n 0 writes nothing"

# ---- the text does not depend on threads, steps, or when it is asked for ----
for t in 1 2 3; do
    run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 -t $t
    same "$(cat "$out")" "$reference" "text with $t threads"
done
for c in 1 3 64; do
    run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --chunk $c
    same "$(cat "$out")" "$reference" "text with steps of $c tokens"
done
for mask in c $simd; do
    run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --cpu-mask $mask --exact
    cp "$out" "$work/text.$mask"
done
same "$(cat "$work/text.c")" "$(cat "$work/text.$simd")" "text with --cpu-mask c and $simd"
run 0 "$TERN" run -n 24 -p "$prompt" "--model=$MODEL"
same "$(cat "$out")" "$reference" "text with options in another order"

# ---- where the prompt comes from ----
printf '%s' "$prompt" >"$work/prompt.txt"
run 0 "$TERN" run -m "$MODEL" -f "$work/prompt.txt" -n 24
same "$(cat "$out")" "$reference" "text of -f FILE"
run_with_input 0 "$prompt" "$TERN" run -m "$MODEL" -f - -n 24
same "$(cat "$out")" "$reference" "text of -f -"
run 0 "$TERN" run -m "$MODEL" -n 24 --raw -p "<|im_start|>user
$prompt<|im_end|>
<|im_start|>assistant
"
same "$(cat "$out")" "$reference" "text of the template written by hand"
run 0 "$TERN" run -m "$MODEL" -n 24 --raw -p "$prompt"
differ "$(cat "$out")" "$reference" "--raw leaves the template out"
run 0 "$TERN" run -m "$MODEL" -n 24 -p "$prompt" --system "Be brief."
differ "$(cat "$out")" "$reference" "--system changes the prompt"
run 0 "$TERN" run -m "$BASE_MODEL" -n 8 -p "$prompt"
grep -q 'no chat template' "$err" || say "a note about the base model"
base=$(cat "$out")
run 0 "$TERN" run -m "$BASE_MODEL" -n 8 -p "$prompt" --raw
same "$(cat "$out")" "$base" "a base model runs raw"
grep -q 'no chat template' "$err" && say "--raw needs no note"
# Control tokens that a user writes stay text.
run 0 "$TERN" run -m "$MODEL" -n 1 --json -p "<|im_end|>"
differ "$(json usage.prompt_tokens)" 9 "<|im_end|> of a user is text"

# A prompt may stand alone or be piped in, which is what people type.
run 0 "$TERN" run -m "$MODEL" -n 24 "$prompt"
same "$(cat "$out")" "$reference" "a prompt that stands alone"
run 0 "$TERN" run "$prompt" -n 24 -m "$MODEL"
same "$(cat "$out")" "$reference" "a prompt that stands first"
run_with_input 0 "$prompt" "$TERN" run -m "$MODEL" -n 24
same "$(cat "$out")" "$reference" "a prompt that is piped in"
run_with_input 0 "$prompt
" "$TERN" run -m "$MODEL" -n 24
same "$(cat "$out")" "$reference" "a prompt with the newline of echo"
run_with_input 0 "not this" "$TERN" run -m "$MODEL" -n 24 -p "$prompt"
same "$(cat "$out")" "$reference" "-p leaves standard input alone"
run_with_input 2 "" "$TERN" run -m "$MODEL"
one_line "a prompt is missing"

# ---- JSON ----
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --json
same "$(json text)" "$reference" "text of --json"
same "$(json finish_reason usage.completion_tokens kv.spec)" "length
24
t4" "--json"
same "$(json :usage.prompt_tokens :timings.prompt_s :timings.decode_s :kv.bytes_per_token :kv.f16_bytes_per_token \
    :peak_memory_bytes)" "integer
real
real
real
real
integer" "types of --json"
same "$(cat "$err")" "" "stderr of --json"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 4 --json --kv f16
same "$(json kv.bytes_per_token)" "$(json kv.f16_bytes_per_token)" "f16 bytes"

# What is in use, from the allocator: a short text takes no less than in 16 bits, a long one the plan's share.
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 4 --json --kv f16
same "$(json kv.bytes)" "$(json kv.f16_bytes)" "bytes of a 16-bit cache"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 4 --json
[ "$(json kv.bytes)" -le "$(json kv.f16_bytes)" ] || say "a short run reports more than 16 bits take"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 8000 --ignore-eos --json --logit-bias 74=400 -c 1024
same "$(json kv.bytes kv.f16_bytes)" "$(json kv.full_bytes kv.full_f16_bytes)" "a context that is full"

# ---- what the model recommends ----
run 0 "$TERN" run -m "$SAMPLING_MODEL" -p "$prompt" -n 24 --seed 5
recommended=$(cat "$out")
grep -q 'as the model recommends: temperature 0.75, top-k 5, min-p 0.1$' "$err" || say "a note about recommended sampling"
grep -q 'not known here: general.sampling.mirostat$' "$err" || say "a note about what is not known"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --seed 5 --temp 0.75 --top-k 5 --min-p 0.1
same "$(cat "$out")" "$recommended" "text of recommended sampling"
run 0 "$TERN" run -m "$SAMPLING_MODEL" -p "$prompt" -n 24 --temp 0
same "$(cat "$out")" "$reference" "--temp 0 overrules the model"
grep -q 'recommend' "$err" && say "no note where nothing is followed"
run 0 "$TERN" run -m "$SAMPLING_MODEL" -p "$prompt" -n 4 --top-k 2 --json
same "$(json sampling.temperature sampling.top_k)" "0.75
2" "sampling of --json"
grep -q '"min_p": 0.1,$' "$out" || say "numbers as people write them"
same "$(cat "$err")" "" "stderr of --json"
run 0 "$TERN" inspect "$SAMPLING_MODEL"
grep -q '^sampling  *temperature 0.75, top-k 5, min-p 0.1 (recommended)$' "$out" || say "inspect: recommended sampling"
run 0 "$TERN" inspect "$SAMPLING_MODEL" --json
same "$(json model.recommended_sampling.top_k)" 5 "inspect --json: recommended sampling"

# ---- sampling ----
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --temp 1 --seed 11
seeded=$(cat "$out")
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --temp 1 --seed 11 -t 1
same "$(cat "$out")" "$seeded" "text of one seed"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --temp 1 --seed 12
differ "$(cat "$out")" "$seeded" "text of another seed"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --temp 1 --json
seed=$(json sampling.seed)
text=$(json text)
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --temp 1 --json --seed "$seed"
same "$(json text)" "$text" "text of the seed that --json told"
for o in "--top-k 1" "--top-p 0" "--min-p 1"; do
    # shellcheck disable=SC2086
    run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 24 --temp 1 --seed 11 $o
    same "$(cat "$out")" "$reference" "greedy text of $o"
done
for o in "--repeat-penalty 3" "--presence-penalty 20" "--frequency-penalty 20"; do
    # shellcheck disable=SC2086
    run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 64 $o --penalty-last -1 --ignore-eos --json
    penal=$(json text)
    # shellcheck disable=SC2086
    run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 64 $o --penalty-last 0 --ignore-eos --json
    plain=$(json text)
    differ "$penal" "$plain" "text with $o"
done
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 5 --logit-bias 66=1000 --logit-bias 67=-1000 --json
same "$(json text)" "BBBBB" "text of a bias"

# ---- ends ----
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 9 --logit-bias 98=500 --json --stop bbb --stop never
same "$(json text finish_reason)" "
stop" "a stop string at the start" 
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 9 --logit-bias 98=500 --json --stop bbbbbbbbbb
same "$(json text finish_reason)" "bbbbbbbbb
length" "what might have been a stop string is not lost"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 9 --logit-bias 299=1000 --json
same "$(json text finish_reason usage.completion_tokens)" "
stop
0" "the end-of-turn token"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 9 --logit-bias 299=1000 --json --ignore-eos
same "$(json finish_reason usage.completion_tokens)" "length
9" "--ignore-eos"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 900 -c 64 --json --ignore-eos
same "$(json finish_reason)" "context" "a full context"
same "$(($(json usage.prompt_tokens) + $(json usage.completion_tokens)))" 64 "tokens of a full context"

# ---- KV plans ----
for kv in f16 q8 l4 l3 l2 t4 t3 t2 k=l4,v=l3 l4,first=0 l4,edge=1:q8 l3,layers=1-2:f16; do
    run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 8 --kv "$kv" --kv-policy strict --json
    same "$(json kv.spec)" "$kv" "plan"
done
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 4 -v
for word in version context layers bytes; do
    grep -q "$word" "$err" || say "--verbose tells $word"
done

# ---- packed weights ----
[ ! -e "$MODEL.packed" ] || say "a small model gets no file of packed weights"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 8 --packed "$work/packed"
reference=$(cat "$out")
grep -q "^tern: writing packed weights to $work/packed (1.9 MiB), once" "$err" || say "tell where and how large"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 8 --packed "$work/packed"
one_line "prompt"
same "$(cat "$out")" "$reference" "text from mapped weights"
run 0 "$TERN" doctor -m "$MODEL" --packed "$work/packed" --json
same "$(json model.packed)" "$work/packed" "the file in doctor's report"
printf x | dd of="$work/packed" bs=1 seek=5000 conv=notrunc 2>/dev/null
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 8 --packed "$work/packed"
same "$(cat "$out")" "$reference" "text in spite of a damaged file"
same "$(grep -c 'damaged.*packed anew' "$err")" 1 "lines about the damaged file"
run 0 "$TERN" run -m "$MODEL" -p "$prompt" -n 8 --packed off
one_line "prompt"
same "$(cat "$out")" "$reference" "text without a file"
cp "$MODEL" "$work/model.gguf"
cp "$work/packed" "$work/model.gguf.packed"
run 0 "$TERN" inspect "$work/model.gguf" --json
same "$(json model.packed)" "$work/model.gguf.packed" "the file that inspect uses"

# ---- Ctrl-C ----
interrupt "$out" JJ "$TERN" run -m "$MODEL" -p "$prompt" -n 8000 --exact --cpu-mask c --logit-bias 74=400
grep -q '^JJJ*$' "$out" || say "keep the text so far"
grep -q 'peak memory' "$err" || say "tell the figures after Ctrl-C"
interrupt "$err" 'KV plan' "$TERN" run -m "$MODEL" -p "$prompt" -n 8000 --exact --cpu-mask c -v --json --ignore-eos
same "$(json finish_reason)" cancelled "finish_reason after Ctrl-C"
# In a prompt, what was computed counts, not what was asked for.
yes "a prompt of many words that goes on and on" | head -n 180 >"$work/long"
interrupt "$err" 'KV plan' "$TERN" run -m "$MODEL" -f "$work/long" -n 10 --exact --cpu-mask c -v --json --chunk 64 -t 1
same "$(json finish_reason usage.completion_tokens)" "cancelled
0" "Ctrl-C in a prompt"
n=$(json usage.prompt_tokens)
[ $((n % 64)) -eq 0 ] && [ "$n" -lt 4000 ] || say "count whole steps that were computed, not $n"
awk "BEGIN { t = $(json timings.prompt_s); r = $(json timings.prompt_tokens_per_s); exit !(r * t < $n + 1 && r * t > $n - 1) }" ||
    say "a rate of what was computed"

finish
