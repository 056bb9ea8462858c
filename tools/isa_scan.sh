#!/bin/sh
# Proves that instructions of an instruction set occur in its own folder only: looks at the machine code of every object
# of a build.  Outside src/kernel/<isa> nothing may need more than the baseline of the architecture; src/kernel/avx2 may
# not need AVX-512.
#
#   tools/isa_scan.sh BUILD
#
# On x86-64 every AVX, FMA and F16C mnemonic begins with v; the BMI ones are named.  AVX-512 shows in zmm, in registers
# 16-31 and in mask registers.  (tzcnt is not named: compilers emit it as a baseline bsf with a prefix that is ignored.)
set -eu

build=${1:?usage: tools/isa_scan.sh BUILD}
case $(uname -m) in
x86_64) ;;
*)
    echo "isa_scan: knows x86-64 only, nothing checked on $(uname -m)"
    exit 0
    ;;
esac

above_baseline='	v[a-z0-9]+ |	(andn|bextr|blsi|blsmsk|blsr|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|popcnt|crc32[bwlq]?|movbe|ps(hufb|ign[bwd])|pabs[bwd]|round[sp][sd]|pmulld|ptest)[lq]? '
amx='%tmm|	(ld|st)tilecfg|	tilerelease'
avx512='%zmm|%[xy]mm(1[6-9]|2[0-9]|3[01])|%k[0-7]'

bad=0
scan() { # scan OBJECT PATTERN WHAT
    hits=$(objdump -d --no-show-raw-insn "$1" | grep -cE "$2" || true)
    if [ "$hits" -gt 0 ]; then
        echo "isa_scan: ${1#"$build"/} has $hits instructions of $3; the first:" >&2
        objdump -d --no-show-raw-insn "$1" | grep -E "$2" | head -3 >&2
        bad=1
    fi
}

n=0
for object in $(find "$build"/CMakeFiles -name '*.o'); do
    n=$((n + 1))
    case $object in
    */kernel_amx.dir/*) ;;
    */kernel_avx512.dir/*) scan "$object" "$amx" "AMX" ;;
    */kernel_avx2.dir/*) scan "$object" "$avx512|$amx" "AVX-512" ;;
    *) scan "$object" "$above_baseline|$amx" "more than the baseline" ;;
    esac
done
if [ "$n" = 0 ]; then
    echo "isa_scan: no objects under $build/CMakeFiles" >&2
    exit 1
fi
[ "$bad" = 0 ] || exit 1
echo "isa_scan: $n objects, no instruction outside its folder"
