# tern run under a rule: a model of random weights writes what the rule says, whatever the temperature.
. "$(dirname "$0")/lib.sh"

schema='{"type":"object","properties":{"name":{"type":"string","maxLength":12},"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":2}},"required":["name","tags"]}'
printf '%s' "$schema" >"$work/schema.json"
printf 'root ::= ("yes" | "no") "!"{1,3}\n' >"$work/rule.gbnf"

for seed in 1 2 3 4 5; do
    run 0 "$TERN" run -m "$MODEL" -p hi --temp 2 --seed $seed -n 400 --json-schema "$schema"
    "$JSON_GET" name <"$out" >"$work/value" 2>&1 || say "write JSON"
    run 0 "$TERN" run -m "$MODEL" -p hi --temp 2 --seed $seed -n 40 --regex '[0-9]{4}(-[0-9]{2}){2}'
    grep -Eqx '[0-9]{4}(-[0-9]{2}){2}' "$out" || say "match the pattern"
    run 0 "$TERN" run -m "$MODEL" -p hi --temp 2 --seed $seed --grammar "$work/rule.gbnf"
    grep -Eqx '(yes|no)!{1,3}' "$out" || say "follow the grammar"
done
run 0 "$TERN" run -m "$MODEL" -p hi --temp 1 --seed 3 --json-schema "$work/schema.json"
cp "$out" "$work/file"
run 0 "$TERN" run -m "$MODEL" -p hi --temp 1 --seed 3 --json-schema "$schema"
cmp -s "$out" "$work/file" || say "give one text for a schema in a file and as it stands"

# The reasoning stays free and is not printed: token 301 is all of it, token 303 its end.
run 0 "$TERN" run -m "$TOOLS_MODEL" -p hi --logit-bias 301=90 -n 60 --regex 'x{3}'
same "$(cat "$out")" "xxx" "the text behind the reasoning"

run 0 "$TERN" run -m "$MODEL" -p hi -n 3 --regex 'x{50}'
grep -q 'cut before' "$err" || say "note that the text was cut"
run 2 "$TERN" run -m "$MODEL" -p hi --regex a --grammar 'root ::= "a"'
run 2 "$TERN" run -m "$MODEL" -p hi --regex a --ignore-eos
run 1 "$TERN" run -m "$MODEL" -p hi --regex '^+'
grep -q 'nothing to repeat' "$err" || say "name what is wrong"
run 1 "$TERN" run -m "$MODEL" -p hi --json-schema '{"not":{}}'
grep -q '"not" is not supported' "$err" || say "name the keyword"
run 1 "$TERN" run -m "$MODEL" -p hi --json-schema "$work/none.json"
finish
