#!/bin/sh
# Proves that instructions of an instruction set occur in its own folder only: looks at the machine code of every object
# of a build, of whatever architecture.  Outside src/kernel/<isa> nothing may need more than the baseline of the
# architecture; src/kernel/avx2 may not need AVX-512 or AVX-VNNI, and src/kernel/neon no extension but the dot products.
#
#   tools/isa_scan.sh BUILD
#
# On x86-64 every AVX, FMA and F16C mnemonic begins with v; the BMI ones are named.  AVX-512 shows in zmm, in registers
# 16-31 and in mask registers.  (tzcnt is not named: compilers emit it as a baseline bsf with a prefix that is ignored.)
#
# On AArch64 the extensions that a compiler can be told to use are named: atomics, rounding multiply-add, CRC,
# cryptography, halves, matrices, bfloat16, and SVE by its registers.
set -eu

build=${1:?usage: tools/isa_scan.sh BUILD}
first=$(find "$build"/CMakeFiles -name '*.o' 2>/dev/null | head -n 1)
if [ -z "$first" ]; then
    echo "isa_scan: no objects under $build/CMakeFiles" >&2
    exit 1
fi
machine=$(readelf -h "$first" | sed -n 's/^ *Machine: *//p')
disassemble=objdump
case $machine in
*X86-64) ;;
AArch64) [ "$(uname -m)" = aarch64 ] || disassemble=aarch64-linux-gnu-objdump ;;
*)
    echo "isa_scan: knows x86-64 and AArch64 only, nothing checked for $machine"
    exit 0
    ;;
esac

above_baseline='	v[a-z0-9]+ |	(andn|bextr|blsi|blsmsk|blsr|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|popcnt|crc32[bwlq]?|movbe|ps(hufb|ign[bwd])|pabs[bwd]|round[sp][sd]|pmulld|ptest)[lq]? '
amx='%tmm|	(ld|st)tilecfg|	tilerelease'
avx512='%zmm|%[xy]mm(1[6-9]|2[0-9]|3[01])|%k[0-7]'
avxvnni='vpdp[bw][a-z]+ '
dots='	[su]dot	'
extensions='	((cas|swp|ld(add|clr|eor|set|[su]max|[su]min))p?[abhl]*|sqrdml[as]h|crc32c?[bhwx]|aes[a-z]*|sha[0-9][a-z0-9]*|usdot|sudot|u?s?mmla|ummla|bf(dot|cvt|mmla|mlal)[a-z0-9]*|fml[as]l2?|fcmla|fcadd|ldapr[bh]?)	|	(fcvt[a-z]*z?[su]|f(add|sub|mul|mla|mls|div|neg|abs|sqrt|max|min|cm)[a-z]*|[su]cvtf)	(h[0-9]+|v[0-9]+\.[48]h),|[ 	{]z[0-9]+\.|[ 	{]p[0-9]+/'

bad=0
scan() { # scan OBJECT PATTERN WHAT
    hits=$("$disassemble" -d --no-show-raw-insn "$1" | grep -cE "$2" || true)
    if [ "$hits" -gt 0 ]; then
        echo "isa_scan: ${1#"$build"/} has $hits instructions of $3; the first:" >&2
        "$disassemble" -d --no-show-raw-insn "$1" | grep -E "$2" | head -3 >&2
        bad=1
    fi
}

n=0
for object in $(find "$build"/CMakeFiles -name '*.o'); do
    n=$((n + 1))
    case $machine:$object in
    AArch64:*/kernel_neon.dir/*) scan "$object" "$extensions" "more than dot products" ;;
    AArch64:*) scan "$object" "$dots|$extensions" "more than the baseline" ;;
    */kernel_amx.dir/*) ;;
    */kernel_avx512bf16.dir/*) scan "$object" "$amx" "AMX" ;;
    */kernel_avx512.dir/*) scan "$object" "$amx" "AMX" ;;
    */kernel_avxvnni.dir/*) scan "$object" "$avx512|$amx" "AVX-512" ;;
    */kernel_avx2.dir/*) scan "$object" "$avx512|$amx|$avxvnni" "AVX-512 or AVX-VNNI" ;;
    *) scan "$object" "$above_baseline|$amx" "more than the baseline" ;;
    esac
done
[ "$bad" = 0 ] || exit 1
echo "isa_scan: $n objects, no instruction outside its folder"
