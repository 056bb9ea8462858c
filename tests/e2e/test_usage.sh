# Help texts and wrong command lines.
. "$(dirname "$0")/lib.sh"

commands="run chat inspect tokenize bench doctor"

# ---- help ----
run 0 "$TERN" --help
for c in $commands "eval logits" "eval ppl" "eval kld" "bench kv"; do
    grep -q "^  $c " "$out" || say "--help lists $c"
done
run 0 "$TERN" --version
grep -q '^tern [0-9]*\.[0-9]*\.[0-9]*$' "$out" || say "a version"
cp "$out" "$work/version"
run 0 "$TERN" -V
cmp -s "$out" "$work/version" || say "-V is --version"
for c in run bench "bench kv" inspect "eval kld"; do
    # shellcheck disable=SC2086
    run 0 "$TERN" $c --help
    for scheme in f16 q8 l4 t4 affine8; do
        grep -q "^  $scheme  " "$out" || say "help of $c lists the scheme $scheme"
    done
done
run 0 "$TERN" tokenize --help
grep -q "KV schemes" "$out" && say "help of a command without --kv lists schemes"
for c in $commands "eval logits" "eval ppl" "eval kld" "bench kv" print; do
    # shellcheck disable=SC2086
    run 0 "$TERN" $c --help
    grep -q "^usage: tern $c " "$out" || say "help of $c begins with its usage"
    grep -q -e '--help' "$out" || say "help of $c lists its options"
    same "$(cat "$err")" "" "stderr of help"
    # shellcheck disable=SC2086
    run 0 "$TERN" help $c
done
run 0 "$TERN" chat --help
grep -q -e '--temp T .*\[0\]' "$out" && say "chat --help says that temperature is 0 when not given"
tr -s ' \n' ' ' <"$out" | grep -q 'nothing and --temp is not given, temperature 0.6 holds' || say "the temperature of chat"
tr -s ' \n' ' ' <"$out" | grep -q 'it recommends nothing, 0 in run, and in chat' || say "--temp tells both defaults"
run 0 "$TERN" eval --help
grep -q 'eval ppl' "$out" || say "eval --help lists its parts"

# ---- what the option table makes ----
run 0 "$TERN" print man
grep -q '^\.TH TERN 1' "$out" || say "a manual page"
for o in 'max\\-tokens' 'cpu\\-mask' 'logit\\-bias'; do
    grep -q -e "\\\\-\\\\-$o" "$out" || say "the manual has $o"
done
for section in FILES ENVIRONMENT EXAMPLES "EXIT STATUS"; do
    grep -q "^\.SH $section" "$out" || say "the manual has $section"
done
for file in MODEL.packed MODEL.ternkv turns.json FILE.part; do
    grep -q "$file" "$out" || say "the manual tells of $file"
done
if command -v groff >/dev/null 2>&1; then
    groff -ww -man -Tascii "$out" 2>"$err" >/dev/null
    same "$(cat "$err")" "" "groff's warnings"
fi
run 0 "$TERN" print bash
if command -v bash >/dev/null 2>&1; then
    cp "$out" "$work/completion"
    run 0 bash -c '. "$1"; COMP_WORDS=(tern run --cpu-mask ""); COMP_CWORD=3; _tern; echo "${COMPREPLY[@]}"' \
        bash "$work/completion"
    same "$(cat "$out")" "$levels" "completion of --cpu-mask"
    run 0 bash -c '. "$1"; COMP_WORDS=(tern eval ""); COMP_CWORD=2; _tern; echo "${COMPREPLY[@]}"' \
        bash "$work/completion"
    same "$(cat "$out")" "logits ppl kld" "completion of eval"
    run 0 bash -c '. "$1"; COMP_WORDS=(tern bench --dep); COMP_CWORD=2; _tern; echo "${COMPREPLY[@]}"' \
        bash "$work/completion"
    same "$(cat "$out")" "--depth" "completion of --dep"
    run 0 bash -c '. "$1"; COMP_WORDS=(tern bench kv --pre); COMP_CWORD=3; _tern; echo "${COMPREPLY[@]}"' \
        bash "$work/completion"
    same "$(cat "$out")" "--preset" "completion of bench kv --pre"
    # completes WORDS COMMAND... : what the last word may become
    completes() {
        words=$1
        shift
        run 0 bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tern; echo "${COMPREPLY[@]}"' \
            bash "$work/completion" tern "$@"
        same "$(cat "$out")" "$words" "completion of $*"
    }
    completes "build verify ls rm" cache ""
    completes "auto use off" run --packed ""
    completes "t4 t3 t2" run --kv t
    completes "0 2 3 4 8" run --turbo-kv-bits ""
    completes "256" run -n ""
    completes "auto on off low medium high max" chat --reasoning ""
    completes "llama8b smollm2" bench kv --preset ""
    completes "models" mod
fi
run 0 "$TERN" print help-md
grep -q '^## tern eval ppl' "$out" || say "a Markdown page"

# ---- wrong use: one line that names the option, and where to look ----
# bad WORD ARGUMENTS...
bad() {
    word=$1
    shift
    run 2 "$TERN" "$@"
    silent
    one_line "$word" "try 'tern "
}
bad "command" 
bad "frobnicate" frobnicate
bad "eval" eval
bad "logits, ppl or kld" eval speed
bad "--model" run -p x
bad "a prompt is missing" run -m "$MODEL"
bad "the prompt is empty" run -m "$MODEL" -p ""
bad "the prompt is empty" run -m "$MODEL" ""
bad "-m (--model) must not be empty: it is FILE" run -m "" -p x
bad "--packed must not be empty" run -m "$MODEL" -p x --packed ""
bad "--draft must not be empty" run -m "$MODEL" -p x --draft=
bad "--draft-max belongs to --draft" run -m "$MODEL" -p x --draft-max 3
bad "--draft-max belongs to --draft" chat -m "$MODEL" --draft off --draft-max 3
bad "--draft-max belongs to --draft" serve -m "$MODEL" --draft-max 3
run 0 "$TERN" run -m "$MODEL" -p x -n 1 --draft ngram --draft-max 3
bad "belong to --cache-disk" serve -m "$MODEL" --cache-disk-gb 1
bad "belong to --cache-disk" serve -m "$MODEL" --cache-disk-min-free 0
bad "build, verify, ls or rm" cache
bad "--out must not be empty" eval logits -m "$MODEL" --ids 1 --out ""
bad "--ids @: the name of a file is missing" eval logits -m "$MODEL" --ids @ --out "$work/x.npy"
bad "an argument is empty" inspect ""
bad "an argument is empty" cache verify ""
bad "the prompt is empty" run -m "$MODEL" -f /dev/null
bad "the prompt is empty" cache build -m "$MODEL" -o "$work/x.ternc" -p ""
bad 'given twice: "none.gguf" and "' run -m none.gguf -p x -m "$MODEL"
bad 'given twice: "x" and "y"' run -m "$MODEL" -p x --prompt=y
bad "given twice" run -m "$MODEL" -f "$0" -f "$0"
bad "given twice" eval ppl -m "$MODEL" -f "$0" -f "$0"
bad "given twice" eval logits -m "$MODEL" --ids 1 --out "$work/x.npy" --out "$work/y.npy"
bad "given twice" run -m "$MODEL" -p x --regex a --regex b
bad "given twice" serve -m "$MODEL" --config /dev/null --config /dev/null
run 0 "$TERN" run -m "$MODEL" -p x -n 5 --kv f16 --temp 1 --max-tokens 0 --kv t4 --temp 0 --json
same "$(json kv.spec usage.completion_tokens)" "t4
0" "the last of a setting counts"
bad "exclude" run -m "$MODEL" -p x -f y
bad "exclude" run -m "$MODEL" -p x --raw --system y
bad "--decode-bits and --exact exclude" run -m "$MODEL" -p x --decode-bits 16 --exact
bad "--decode-bits and --exact exclude" eval ppl -m "$MODEL" -f x --decode-bits 8 --exact
bad "--prompt-class and --exact exclude" run -m "$MODEL" -p x --prompt-class int8 --exact
bad "--bogus" run -m "$MODEL" -p x --bogus
bad "-Z" run -m "$MODEL" -p x -Z
bad "-n" run -m "$MODEL" -p x -n -1
bad "0 to 2147483647" run -m "$MODEL" -p x -n 3000000000
bad "-n" run -m "$MODEL" -p x -n many
bad "-n" run -m "$MODEL" -p x -n
bad "--temp" run -m "$MODEL" -p x --temp -1
bad "--temp" run -m "$MODEL" -p x --temp nan
bad "--top-k" run -m "$MODEL" -p x --top-k -5
bad "0 to 1" run -m "$MODEL" -p x --top-p 1.5
bad "--min-p" run -m "$MODEL" -p x --min-p 2
bad "--seed" run -m "$MODEL" -p x --seed -4
bad "--stop must not" run -m "$MODEL" -p x --stop ""
bad "--stop-token must not" run -m "$MODEL" -p x --stop-token ""
bad "--repeat-penalty" run -m "$MODEL" -p x --repeat-penalty 0
bad "--logit-bias" run -m "$MODEL" -p x --logit-bias 5
bad "--logit-bias" run -m "$MODEL" -p x --logit-bias 5=
bad "--logit-bias" run -m "$MODEL" -p x --logit-bias x=1
bad "--logit-bias" run -m "$MODEL" -p x --logit-bias 5=nan
bad "--logit-bias" run -m "$MODEL" -p x --logit-bias 5=inf
bad "--threads" run -m "$MODEL" -p x -t 1000
bad "--ctx" run -m "$MODEL" -p x -c -1
bad "strict|report" run -m "$MODEL" -p x --kv-policy perhaps
bad "$(echo "$levels" | tr " " "|")" run -m "$MODEL" -p x --cpu-mask sse9
bad "--json" run -m "$MODEL" -p x --json=yes
bad "exclude" run -m "$MODEL" -p x stray
bad "exclude" run -m "$MODEL" -f x stray
bad "stray" run -m "$MODEL" x stray
bad "stray" chat -m "$MODEL" stray
for c in "generate run" "perplexity eval" "quantize convert" "list models" "info inspect"; do
    bad "unknown command \"${c% *}\"; here it is ${c#* }" "${c% *}"
done
# What no file could make right is wrong use.
bad "t9" run -m "$MODEL" -p x --kv t9
bad "t9" run -m "$work/none.gguf" -p x --kv t9
bad "k=" inspect "$MODEL" --kv k=l4
bad "nonsense" bench -m "$MODEL" --kv nonsense -d 0 -p 8 -n 1
bad "l9" eval kld -m "$MODEL" -f "$0" --kv l4,l9
bad "zz" bench kv --kv zz
bad "zz" doctor -m "$MODEL" --kv zz
bad "--kv needs a model" doctor --kv l4
bad "KV heads" bench kv --heads 3 --kv-heads 2
bad "Q9" bench weights --types Q9
bad "not a multiple" bench weights --outputs 17
bad "is not a token id" eval logits -m "$MODEL" --ids 1,one,2 --out "$work/x.npy"
bad "missing before the comma at byte 2" eval logits -m "$MODEL" --ids 1,,2 --out "$work/x.npy"
bad "missing before the comma at byte 0" eval logits -m "$MODEL" --ids ,2 --out "$work/x.npy"
bad "missing behind the last comma" eval logits -m "$MODEL" --ids "1, 2, " --out "$work/x.npy"
bad "layers wants" run -m "$MODEL" -p x --kv l4,layers=9
bad "-3" eval logits -m "$MODEL" --ids 1,-3 --out "$work/x.npy"
bad "no token ids" eval logits -m "$MODEL" --ids "" --out "$work/x.npy"
bad "1 to" chat -m "$MODEL" -n 0
bad "--raw" chat -m "$MODEL" --raw
bad "FILE" inspect
bad "other" inspect "$MODEL" other
bad "exclude" tokenize -m "$MODEL" --ids --decode
bad "--out" eval logits -m "$MODEL" --ids 1
bad "--ids" eval logits -m "$MODEL" --out x.npy
bad "--file" eval ppl -m "$MODEL"
bad "--ctx" eval ppl -m "$MODEL" -f "$0" -c 1
bad "--file" eval kld -m "$MODEL"
bad "--ctx" eval kld -m "$MODEL" -f "$0" -c 7
bad "--chunks" eval kld -m "$MODEL" -f "$0" --chunks 0
bad "empty plan" eval kld -m "$MODEL" -f "$0" --kv l4,
bad "more than 16 plans" eval kld -m "$MODEL" -f "$0" --kv l4,l4,l4,l4,l4,l4,l4,l4,l4 --kv l4,l4,l4,l4,l4,l4,l4,l4
for o in "" "--kv l4,l3" "--kv k=l4,v=l4" "--kv l4 --kv l3"; do
    # shellcheck disable=SC2086
    bad "one scheme" eval kld -m "$MODEL" -f "$0" --per-layer $o
done
bad "--depth" bench -m "$MODEL" -d 0,,1
bad "--depth" bench -m "$MODEL" -d -1
bad "--reps" bench -m "$MODEL" -r 0
bad "nothing to measure" bench -m "$MODEL" -p 0 -n 0
bad "empty plan" bench -m "$MODEL" --kv f16,
bad "exclude" bench -m "$MODEL" --json --csv
bad "help-md" print html
bad "runs on device cpu: --device cuda" run -m x -p x --device cpu --gpu-memory 1G
bad "runs on device cpu: --device cuda" run -m x -p x --device cpu --gpus 2
bad "gpu-memory needs a card: " bench -m x --gpu-memory 1G
bad "gpu-layers needs a card: " run -m x -p x --gpu-layers 3
bad "gpus needs a card: " run -m x -p x --device auto --gpus 1
bad "--gpu-memory needs a model" doctor --gpu-memory 1G --device cuda
run 2 "$TERN" run -p x
one_line "try 'tern run --help'"

finish
