# tern bench weights: what it reports and refuses, not how fast it is.
. "$(dirname "$0")/lib.sh"

small="--size 100K --outputs 96 --inputs 512 -r 2 --read 1M"

# ---- the table ----
# shellcheck disable=SC2086
run 0 "$TERN" bench weights $small -t 2
same "$(cat "$err")" "" "stderr"
grep -q '^96 x 512, 2 threads, decode rows; reading alone ' "$out" || say "tell the geometry"
for type in F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K; do
    grep -q "^$type " "$out" || say "measure $type"
done
same "$(tail -n +3 "$out" | awk 'NF != 12' | wc -l | tr -d ' ')" 0 "rows of another number of columns"

# ---- the object ----
# shellcheck disable=SC2086
run 0 "$TERN" bench weights $small -t 1 --types q6_k,Q4_0 -b 3,1 --json --cpu-mask $simd
same "$(json :machine.cpu :machine.isa machine.threads '#results' outputs inputs class :peak_memory_bytes)" "string
string
1
4
96
512
decode
integer" "the report"
same "$(json results.0.type results.0.rows results.1.type results.1.rows results.2.type results.2.rows \
    results.3.rows)" "Q6_K
3
Q6_K
1
Q4_0
3
1" "types and rows in the order given"
i=0
while [ $i -lt 4 ]; do
    for field in us_per_matrix read_share; do
        same "$(json :results.$i.$field.median :results.$i.$field.min :results.$i.$field.max)" "real
real
real" "$field of result $i"
    done
    same "$(json :results.$i.bits_per_weight :results.$i.ns_per_weight :results.$i.gb_per_s results.$i.reps)" "real
real
real
2" "result $i"
    awk "BEGIN { exit !($(json results.$i.error) > 1e-4 && $(json results.$i.error) < .05) }" ||
        say "multiply what there is: error of result $i"
    i=$((i + 1))
done
same "$(json :read_gb_per_s.median :read_gb_per_s.min :read_gb_per_s.max)" "real
real
real" "the speed of reading alone"
# 96 x 512 weights of 4.5 bits, and 64 bytes that kernels may read behind them; as many matrices as reach 100 KiB.
same "$(json results.2.bytes)" "$((4 * (96 * 512 * 9 / 16 + 64))).0" "bytes of a type"

# ---- comma-separated values, prompt rows ----
# Plain C multiplies prompts in 32 bits; what is faster, in 16 at least.
# shellcheck disable=SC2086
run 0 "$TERN" bench weights $small --types F32,Q8_0 -b 5 --prompt-rows --csv --cpu-mask c
awk -F, 'NR > 1 && !($18 < 1e-5) { exit 1 }' "$out" || say "multiply prompts in 32 bits"
# shellcheck disable=SC2086
run 0 "$TERN" bench weights $small --types F32,Q8_0 -b 5 --prompt-rows --csv --cpu-mask $simd
same "$(head -n 1 "$out" | cut -d, -f1-8)" "type,rows,class,threads,outputs,inputs,bytes,bits_per_weight" "the columns"
same "$(tail -n +2 "$out" | cut -d, -f1-3 | tr '\n' ' ')" "F32,5,prompt Q8_0,5,prompt " "the rows"
same "$(awk -F, '{ print NF }' "$out" | sort -u)" 22 "values in every line"
awk -F, 'NR > 1 && !($18 < ($1 == "F32" ? 1e-5 : 1e-4)) { exit 1 }' "$out" || say "multiply prompts in 16 bits"

# ---- what cannot be ----
# refused STATUS TEXT ARGUMENTS...
refused() {
    expected=$1
    text=$2
    shift 2
    run "$expected" "$TERN" bench weights "$@"
    silent
    one_line "$text"
}
refused 2 'unknown weight type "q9_9"' --types q4_0,q9_9
refused 2 "100 outputs are not a multiple of 16" --outputs 100
refused 1 "not whole blocks of 256, as Q4_K needs" --types Q8_0,Q4_K --inputs 96
refused 1 "GiB and the machine has" --size 900T
refused 2 "empty type" --types Q4_0,
refused 2 "--size must be a number" --size 1X
refused 2 "-b (--rows)" -b 0
refused 2 "-b (--rows)" -b 1,9000
refused 2 "--outputs" --outputs 8
refused 2 "exclude each other" --json --csv
refused 2 "unknown option" -m model.gguf

finish
