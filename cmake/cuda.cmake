# The device `cuda`: kernels compiled by nvcc into files of machine code that become part of the library.  The driver is
# found at run time, so nothing of CUDA is linked and the program runs where there is none.
#
#   TERN_CUDA        OFF (default, docs/decisions/029-cuda.md); AUTO: where an nvcc is found; ON: or stop
#   TERN_CUDA_ARCH   what kernels are compiled for: compute capabilities, of which the last serves newer cards too
#   TERN_CUDA_PTX    ON (default): newer cards are served; OFF: half the time to compile, for tests alone
#   TERN_CUDA_FLAGS  what nvcc is given besides; -Xcicc;-O1;-Xptxas;-O0: a fourth of the time, for who does not run kernels
set(TERN_CUDA OFF CACHE STRING "the device cuda: AUTO, ON or OFF")
set(TERN_CUDA_ARCH "80;90a" CACHE STRING "compute capabilities that kernels are compiled for")
option(TERN_CUDA_PTX "kernels in a form that cards newer than TERN_CUDA_ARCH translate" ON)
set(TERN_CUDA_FLAGS "" CACHE STRING "what nvcc is given besides")
set(tern_cuda_objects)

if(TERN_SANITIZE OR TERN_FUZZ) # what they look for lies elsewhere, and kernels take minutes
  set(TERN_CUDA OFF)
endif()
if(TERN_CUDA AND NOT CMAKE_CROSSCOMPILING)
  find_program(TERN_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
endif()
if(NOT TERN_CUDA OR NOT TERN_NVCC)
  if(TERN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TERN_CUDA is ON and no nvcc was found (CUDA_HOME says where it is)")
  endif()
  list(REMOVE_ITEM tern_devices cuda)
  return()
endif()

set(codes)
foreach(arch ${TERN_CUDA_ARCH})
  list(APPEND codes -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET TERN_CUDA_ARCH -1 newest)
string(REGEX REPLACE "a$" "" newest "${newest}")
set(ptx -gencode=arch=compute_${newest},code=compute_${newest})

# Headers are few: each kernel file depends on all of them.
file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS src/dev/cuda/*.cuh src/dev/cuda/*.h src/dev/cuda/*.def)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/dev/cuda/*.cu)
foreach(source ${cuda_sources})
  get_filename_component(name ${source} NAME_WE)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.fatbin)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}_fatbin.c)
  # Files that say something else to cards without the features of one compute capability are always compiled as both.
  file(STRINGS ${source} both REGEX "__CUDA_ARCH_FEAT" LIMIT_COUNT 1)
  if(TERN_CUDA_PTX OR both)
    set(forms ${codes} ${ptx})
  else()
    set(forms ${codes})
  endif()
  file(GENERATE OUTPUT ${object} CONTENT "extern const unsigned char tern_cuda_fatbin_${name}[];
__asm__(\".section .rodata\\n.balign 64\\n.globl tern_cuda_fatbin_${name}\\n.hidden tern_cuda_fatbin_${name}\\n\"
        \"tern_cuda_fatbin_${name}:\\n.incbin \\\"${fatbin}\\\"\\n.previous\\n\");
")
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/cuda
    COMMAND ${TERN_NVCC} -fatbin -std=c++17 -O3 ${TERN_CUDA_FLAGS} ${forms} -I${CMAKE_CURRENT_SOURCE_DIR}/src
            -I${CMAKE_CURRENT_SOURCE_DIR}/include -o ${fatbin} ${source}
    DEPENDS ${source} ${cuda_headers} VERBATIM)
  set_source_files_properties(${object} PROPERTIES OBJECT_DEPENDS ${fatbin})
  list(APPEND tern_cuda_objects ${object})
endforeach()
# No ledger has the bits of cards, so the device's sources stand for them (src/run/prefix/origin.c).
file(GLOB_RECURSE cuda_files CONFIGURE_DEPENDS src/dev/cuda/*)
list(SORT cuda_files)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${cuda_files})
set(digests)
foreach(source ${cuda_files})
  file(SHA256 ${source} digest)
  string(APPEND digests ${digest})
endforeach()
string(SHA256 digests "${digests}")
string(SUBSTRING " ${digests}" 0 9 tern_kernels)
# The registry alone knows, and where pages come from: switching compiles two files more.
set_source_files_properties(src/dev/dev.c PROPERTIES COMPILE_DEFINITIONS TERN_CUDA)
