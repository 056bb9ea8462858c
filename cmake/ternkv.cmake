# libternkv: the KV codec alone (include/tern/kvq.h), for other engines.  Its objects are linked into one, in which all
# names but the public ones become local: a program may link libtern too, of whatever version.
file(GLOB ternkv_sources CONFIGURE_DEPENDS src/kvlib/*.c src/codec/kv_*.c)
add_library(ternkv_objects OBJECT ${ternkv_sources} src/base/cpu.c src/base/err.c src/base/mem.c src/kernel/dispatch.c)
set_target_properties(ternkv_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(ternkv_objects PRIVATE include src)
target_compile_definitions(ternkv_objects PRIVATE _GNU_SOURCE TERN_KV_ONLY ${tern_isa_definitions})
target_compile_options(ternkv_objects PRIVATE -fno-lto)

set(ternkv_parts $<TARGET_OBJECTS:ternkv_objects>)
set(ternkv_targets ternkv_objects)
foreach(objects ${tern_isa_objects})
  string(REGEX MATCH "kernel_[a-z0-9]+" target ${objects})
  list(APPEND ternkv_targets ${target})
  list(APPEND ternkv_parts $<FILTER:${objects},EXCLUDE,/\(attn16|gemm|vec|delta|prompt\)[^/]*\.o$>)
endforeach()
add_custom_command(OUTPUT ternkv.o
                   COMMAND ${CMAKE_LINKER} -r -o ternkv.o ${ternkv_parts}
                   COMMAND ${CMAKE_OBJCOPY} --localize-hidden ternkv.o
                   DEPENDS ${ternkv_parts} COMMAND_EXPAND_LISTS VERBATIM)
add_library(ternkv STATIC ${CMAKE_CURRENT_BINARY_DIR}/ternkv.o)
add_dependencies(ternkv ${ternkv_targets})
set_target_properties(ternkv PROPERTIES LINKER_LANGUAGE C)
target_include_directories(ternkv PUBLIC include)
target_link_libraries(ternkv PUBLIC m)
