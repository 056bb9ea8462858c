# Toolchain of the preset `neon`: Debian's cross compiler, tests under qemu-user.  The libraries lie in the sysroot that
# tools/sysroot makes beside the build; the C library comes with the compiler.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(TERN_SYSROOT ${CMAKE_BINARY_DIR}/sysroot CACHE PATH "arm64 packages, unpacked")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TERN_SYSROOT)

set(CMAKE_FIND_ROOT_PATH ${TERN_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(ENV{PKG_CONFIG_DIR} "")
set(ENV{PKG_CONFIG_LIBDIR} ${TERN_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${TERN_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${TERN_SYSROOT})
set(lib ${TERN_SYSROOT}/lib/aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,${lib}:${TERN_SYSROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_SKIP_BUILD_RPATH ON) # the emulator looks below the sysroot first, so the usual places will do

set(TERN_QEMU qemu-aarch64 -L ${TERN_SYSROOT})
set(CMAKE_CROSSCOMPILING_EMULATOR ${TERN_QEMU})
