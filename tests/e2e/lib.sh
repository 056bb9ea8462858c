# tests/e2e/lib.sh - what the scripts share.  Sourced first; `finish` comes last.
#
# run STATUS COMMAND...   runs it; stdout in $out, stderr in $err (files); complains unless the status is STATUS
# interrupt FILE TEXT COMMAND...   the same with Ctrl-C as soon as FILE has TEXT; complains unless the status is 130
# say WHAT                complains: the last command did not do WHAT
# $levels, $simd          the words of --cpu-mask on this architecture; its first level above plain C
# Every complaint shows the command and its output; the script goes on and fails at the end.
set -u

work=$(mktemp -d "${TMPDIR:-/tmp}/tern-e2e.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache-home"
out=$work/out
err=$work/err
complaints=0
checks=0
command_line=

case $(uname -m) in
aarch64) levels="c neon all" simd=neon ;;
*) levels="c avx2 avxvnni avx512 avx512bf16 amx all" simd=avx2 ;;
esac

say() {
    complaints=$((complaints + 1))
    echo "FAILED: $*"
    echo "  command: $command_line"
    echo "  stdout:  $(head -c 400 "$out")"
    echo "  stderr:  $(head -c 800 "$err")"
}

run() {
    expected=$1
    shift
    command_line="$*"
    checks=$((checks + 1))
    "$@" >"$out" 2>"$err" </dev/null
    status=$?
    [ "$status" -eq "$expected" ] || say "status $status instead of $expected"
}

# As run, with the text $2 on standard input.
run_with_input() {
    expected=$1
    input=$2
    shift 2
    command_line="$*"
    checks=$((checks + 1))
    printf '%s' "$input" >"$work/in"
    "$@" >"$out" 2>"$err" <"$work/in"
    status=$?
    [ "$status" -eq "$expected" ] || say "status $status instead of $expected"
}

interrupt() {
    file=$1
    text=$2
    shift 2
    command_line="$* & kill -INT"
    checks=$((checks + 1))
    : >"$out"
    : >"$err"
    "$@" >"$out" 2>"$err" </dev/null &
    pid=$!
    tries=0
    while [ $tries -lt 1200 ] && ! grep -q "$text" "$file"; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -INT $pid
    wait $pid
    same $? 130 "status after Ctrl-C"
}

# The last command's stderr is exactly one line that contains each of the texts.
one_line() {
    checks=$((checks + 1))
    [ "$(wc -l <"$err")" -eq 1 ] || say "not one line on stderr"
    for text in "$@"; do
        grep -qF -e "$text" "$err" || say "stderr does not mention: $text"
    done
}

silent() {
    checks=$((checks + 1))
    [ ! -s "$out" ] || say "something on stdout"
}

# same A B WHAT: two texts are equal.
same() {
    checks=$((checks + 1))
    [ "$1" = "$2" ] || say "$3: \"$1\" is not \"$2\""
}

differ() {
    checks=$((checks + 1))
    [ "$1" != "$2" ] || say "$3: both are \"$1\""
}

# A value of the JSON object on the last command's stdout.
json() {
    "$JSON_GET" "$@" <"$out"
}

finish() {
    echo "$checks checks, $complaints complaints"
    [ "$checks" -gt 0 ] && [ "$complaints" -eq 0 ]
}
