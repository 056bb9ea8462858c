# Folder = instruction set = compile flags.  src/kernel/<isa>/ is compiled with that folder's flags and nothing else
# is, so no other object can contain instructions that the machine may not have.
set(tern_isa_objects)
set(tern_isa_definitions)

# What Linux says of the processor of this machine; empty where it says nothing.
set(tern_cpu)
if(TERN_SANITIZE AND NOT CMAKE_CROSSCOMPILING AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo tern_cpu REGEX "^flags" LIMIT_COUNT 1)
endif()

# NEEDS: how Linux calls what kernels of this folder need.
function(tern_isa name)
  cmake_parse_arguments(ARG "" "NEEDS" "FLAGS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS src/kernel/${name}/*.c)
  if(NOT sources)
    return()
  endif()
  add_library(kernel_${name} OBJECT ${sources})
  set_target_properties(kernel_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON) # libternkv may end in a shared library
  target_include_directories(kernel_${name} PRIVATE include src)
  target_compile_definitions(kernel_${name} PRIVATE _GNU_SOURCE)
  if(TERN_SANITIZE MATCHES "undefined") # its checks in fully unrolled loops take the compiler minutes
    list(TRANSFORM ARG_FLAGS REPLACE "^-O3$" "-O1")
    if(TERN_SANITIZE MATCHES "address" AND NOT TERN_TEST_LONG)
      # AddressSanitizer sees these at the access itself; they took a sixth of the time of the tests of attention.
      list(APPEND ARG_FLAGS -fno-sanitize=null,object-size)
    endif()
  endif()
  target_compile_options(kernel_${name} PRIVATE -fno-lto ${ARG_FLAGS})
  if(ARG_NEEDS AND tern_cpu AND NOT "${tern_cpu} " MATCHES " ${ARG_NEEDS} ")
    # Here they cannot run, so a sanitizer would never see them, and would take the compiler a minute more for one file.
    target_compile_options(kernel_${name} PRIVATE -fno-sanitize=all)
  endif()
  if(TERN_FUZZ) # kernels see no file bytes that the code around them has not checked; clang would take minutes for each
    target_compile_options(kernel_${name} PRIVATE -O1 -fno-sanitize=all)
  endif()
  string(TOUPPER ${name} upper)
  set(tern_isa_objects ${tern_isa_objects} $<TARGET_OBJECTS:kernel_${name}> PARENT_SCOPE)
  set(tern_isa_definitions ${tern_isa_definitions} TERN_HAVE_${upper}=1 PARENT_SCOPE)
endfunction()

tern_isa(ref FLAGS -O3 -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  tern_isa(avx2 FLAGS -O3 -mavx2 -mfma -mf16c -mbmi2)
  tern_isa(avxvnni NEEDS avx_vnni FLAGS -O3 -mavx2 -mfma -mf16c -mbmi2 -mavxvnni)
  tern_isa(avx512 NEEDS avx512f
           FLAGS -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mfma -mf16c -mbmi2
                 -mprefer-vector-width=512)
  tern_isa(avx512bf16 NEEDS avx512_bf16
           FLAGS -O3 -mavx512bf16 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mfma -mf16c -mbmi2
                 -mprefer-vector-width=512)
  tern_isa(amx NEEDS amx_tile
           FLAGS -O3 -mamx-tile -mamx-bf16 -mavx512bf16 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi
                 -mfma -mf16c -mbmi2 -mprefer-vector-width=512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # Scheduling before registers are given out would spill half of what the kernels hold.
  tern_isa(neon FLAGS -O3 -march=armv8.2-a+dotprod -fno-schedule-insns)
endif()
