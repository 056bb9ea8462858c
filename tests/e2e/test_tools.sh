# tern chat with tools and reasoning: --logit-bias chooses tokens that are a whole call, reasoning, or half a call.
. "$(dirname "$0")/lib.sh"

cat >"$work/tools.json" <<'END'
[{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
 {"name": "now", "parameters": {}}]
END

# chat TOKEN INPUT ARGUMENTS...: every token of a reply is TOKEN, status 0
chat() {
    token=$1
    input=$2
    shift 2
    run_with_input 0 "$input" "$TERN" chat -m "$TOOLS_MODEL" --logit-bias "$token=900" "$@"
}

# ---- two calls, their results, and again ----
call='call add {"a": 1, "b": [2]}'
chat 300 "hi
3
4
/save $work/session
" -n 2 --tools "$work/tools.json"
same "$(cat "$out")" "$call
$call
$call
$call" "four calls in two replies"
same "$(grep -c 'the result of add' "$err")" 3 "results asked for: one per open call, until it is given"
turns=$work/session.turns.json
same "$("$JSON_GET" '#turns' <"$turns")" 5 "turns: message, calls, two results, calls"
same "$("$JSON_GET" turns.2.content <"$turns")" 3 "the first result"
same "$("$JSON_GET" turns.3.content <"$turns")" 4 "the second result"
same "$("$JSON_GET" turns.1.tool_calls.1.id <"$turns")" "$("$JSON_GET" turns.3.tool_call_id <"$turns")" "whose result"
differ "$("$JSON_GET" turns.1.tool_calls.0.id <"$turns")" "$("$JSON_GET" turns.1.tool_calls.1.id <"$turns")" "ids of calls"
grep -q '"add"' "$turns" || say "keep the names"

# ---- the open call is part of a saved session, /reset forgets it ----
chat 303 "/load $work/session
/reset
hi
" -n 1 --tools "$work/tools.json"
same "$(grep -c 'the result of add' "$err")" 1 "asked for after /load, not after /reset"
same "$(cat "$out")" "Done.</think>" "a reply without reasoning to close"

# ---- the template sees the tools: a longer prompt ----
chat 303 "hi
/stats
" -n 1
plain=$(sed -n 's/.*: \([0-9]*\) of 8192 tokens.*/\1/p' "$err")
chat 303 "hi
/stats
" -n 1 --tools "$work/tools.json"
with=$(sed -n 's/.*: \([0-9]*\) of 8192 tokens.*/\1/p' "$err")
[ "$with" -gt "$((plain + 50))" ] || say "put the tools into the prompt: $plain and $with tokens"

# ---- what is no call is text, with a notice; without tools nothing is looked for ----
chat 302 "hi
" -n 1 --tools "$work/tools.json"
same "$(cat "$out")" '<tool_call>{"name": "add"' "half a call"
grep -q 'ends inside a call' "$err" || say "tell what was wrong with the call"
chat 300 "hi
" -n 1
same "$(head -n 1 "$out")" "<tool_call>" "a call that nobody asked for"

# ---- reasoning ----
chat 301 "hi
" -n 1
same "$(cat "$out")" "" "the answer"
grep -q '^Well\.$' "$err" || say "show the reasoning on standard error"
chat 301 "hi
" -n 1 --hide-reasoning
grep -q 'Well' "$err" && say "hide the reasoning"
chat 303 "hi
" -n 1 --reasoning on
same "$(cat "$out")" "" "the answer of a reply that began inside its reasoning"
grep -q '^Done\.$' "$err" || say "know that the prompt opened the reasoning"
# A mark that is a control token, then (it is penalised) text.
chat 304 "hi
" -n 2 --logit-bias 303=850 --presence-penalty 100
same "$(cat "$out")" "" "the answer behind a mark that is a control token"
grep -q '^Done\.$' "$err" || say "take a control token for a mark"
chat 303 "hi
" -n 1 --reasoning off
same "$(cat "$out")" "Done.</think>" "a reply without reasoning"

# DeepSeek-V4's efforts are texts before everything else.
for level in "auto 6" "off 6" "low 6" "high 348" "max 390"; do
    run_with_input 0 "hi
/stats
" "$TERN" chat -m "$V4_MODEL" -n 1 --seed 1 --reasoning "${level% *}"
    grep -q "last reply: ${level#* } prompt tokens" "$err" || say "read ${level#* } tokens with --reasoning ${level% *}"
done

# ---- refusals ----
run 1 "$TERN" chat -m "$MODEL" --tools "$work/tools.json"
one_line "text.gguf" "knows no tools"
run 1 "$TERN" chat -m "$MODEL" --reasoning off
one_line "no switch for --reasoning off"
run 1 "$TERN" chat -m "$TOOLS_MODEL" --reasoning high
one_line "reasoning_effort"
run 1 "$TERN" chat -m "$TOOLS_MODEL" --reasoning max
one_line "reasoning_effort"
run 1 "$TERN" chat -m "$TOOLS_MODEL" --tools "$work/none.json"
one_line "none.json"
run 2 "$TERN" chat -m "$TOOLS_MODEL" --tool-format hermes
one_line "--tools"
run 1 "$TERN" chat -m "$TOOLS_MODEL" --tools "$work/tools.json" --tool-format telepathy
one_line "telepathy"
bad() {
    printf '%s' "$1" >"$work/bad.json"
    run 1 "$TERN" chat -m "$TOOLS_MODEL" --tools "$work/bad.json"
    one_line "bad.json" "$2"
}
bad '{}' "not a JSON array"
bad '[]' "not a JSON array"
bad '[{"name": "a"}, 3]' "tool 1 has no name"
bad '[{"type": "web_search", "function": {"name": "x"}}]' "tool 0 is of a type"
bad '[{"name": "a",' "line 1"

finish
