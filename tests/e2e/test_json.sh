# Every report is what docs/json.md says: all fields, no others, of those types.
. "$(dirname "$0")/lib.sh"

# report SECTION ARGUMENTS...
report() {
    section=$1
    shift
    run 0 "$TERN" "$@" --json
    "$JSON_SCHEMA" "$DOCS/json.md" "$section" <"$out" >"$work/differences" 2>&1 || {
        say "differs from docs/json.md"
        cat "$work/differences"
    }
    same "$(json version)" "$("$TERN" --version | cut -d' ' -f2)" "version"
}

yes "a text of words and more words, again and again" | head -n 200 >"$work/text"
report run run -m "$MODEL" -p x -n 4 --logit-bias 5=1.5 --logit-bias 7=-1 --temp 0.5 --seed 9 --presence-penalty 0.25
same "$(json command sampling.logit_bias.5 sampling.logit_bias.7 sampling.seed sampling.presence_penalty)" "run
1.5
-1.0
9
0.25" "sampling, complete"
report run run -m "$SAMPLING_MODEL" -p x -n 2 --kv l4,l3 --kv-when end
same "$(json kv.when '#kv.notes')" "end
1" "what the plan has to say"
report inspect inspect "$MODEL"
report inspect inspect "$TEST_DATA/tiny/qwen35.gguf" --tensors
report inspect inspect "$TEST_DATA/hf/qwen2" --kv l4,layers=0:f16
run_with_input 0 "the sea" "$TERN" tokenize -m "$MODEL" --json
same "$(json '#ids' n_tokens tokens.0 command)" "4
4
t
tokenize" "tokens"
"$JSON_SCHEMA" "$DOCS/json.md" tokenize <"$out" || say "differs from docs/json.md"
run_with_input 0 "97 299 98" "$TERN" tokenize -m "$MODEL" --json --decode
same "$(json text n_tokens)" "a<|im_end|>b
3" "text"
"$JSON_SCHEMA" "$DOCS/json.md" tokenize <"$out" || say "differs from docs/json.md"
report "eval logits" eval logits -m "$MODEL" --ids 1,2,3 --out "$work/x.npy" --decode
same "$(json file n_tokens rows kv.spec)" "$work/x.npy
3
decode
t4" "logits"
report "eval ppl" eval ppl -m "$MODEL" -f "$work/text" -c 128
report "eval kld" eval kld -m "$MODEL" -f "$work/text" -c 128 --chunks 1 --kv l4,l3
report "eval kld" eval kld -m "$MODEL" -f "$work/text" -c 128 --chunks 1 --kv l4 --per-layer
report bench bench -m "$MODEL" -p 8 -n 2 -d 0 -b 1,2 -r 1 --read 1M
report bench bench -m "$MODEL" -p 8 -n 0 -d 0 -r 1 --read 1M # by default the default plan, against 16 bits
run 0 "$TERN" inspect "$MODEL" --json
usual=$(json kv.spec)
run 0 "$TERN" bench -m "$MODEL" -p 8 -n 0 -d 0 -r 1 --read 1M --json
same "$(json results.0.kv.spec results.1.kv.spec)" "f16
$usual" "plans of bench"
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/text" -c 128 --chunks 1 --json
same "$(json plans.1.kv.spec)" "$usual" "the first plan of eval kld"
report "bench kv" bench kv --preset smollm2 -c 100 --layers 1 -r 1 --read 1M --kv l4
report "bench weights" bench weights --types Q4_0 --size 100K --outputs 64 --inputs 256 -r 1 --read 1M
report doctor doctor
report doctor doctor -m "$MODEL" --cpu-mask c
report "doctor --fit" doctor --fit 1K --in 500K -m "$MODEL"
same "$(json plan | head -c 9)" "# KV plan" "the plan"
report convert convert -m "$MODEL" -o "$work/new.gguf" --type q8_0
run 0 "$TERN" run -m "$MODEL" -p x -n 1 --packed "$work/packed"
report models models "$(dirname "$MODEL")"
report "cache ls" cache ls
same "$(json '#files')" 1 "files"
report bench bench -m "$TEST_DATA/tiny/deepseek4.gguf" -p 8 -n 2 -d 0 -r 1 --read 1M --packed "$work/experts" \
    --experts-resident 32K --chunk 2
same "$(json results.1.experts.limit_bytes)" 32768 "experts on disk"

# The check itself: what is missing, unknown or of another type is found.
"$TERN" cache ls --json >"$work/good"
for edit in 's/"folder"/"fodler"/' 's/"bytes": \([0-9]*\)/"bytes": "\1"/' 's/"orphan": false,*/"orphan": null/'; do
    checks=$((checks + 1))
    sed "$edit" "$work/good" >"$work/bad"
    cmp -s "$work/good" "$work/bad" && say "the edit $edit changes nothing"
    "$JSON_SCHEMA" "$DOCS/json.md" "cache ls" <"$work/bad" >/dev/null && say "the check lets $edit pass"
done
# Every command with --json has a section.
for c in $("$TERN" print help-md | awk '/^## tern / { c = $0; sub("## tern ", "", c); gsub(" ", "_", c) } /^\| `--json`/ { print c }'); do
    checks=$((checks + 1))
    grep -qx "## $(echo "$c" | tr _ ' ')" "$DOCS/json.md" || say "docs/json.md has $c"
done

finish
