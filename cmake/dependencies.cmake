# Everything comes from Debian 12 and its backports; deploy/packages installs it.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
# 0.15 of Debian 12 itself loses committed writes.
pkg_check_modules(RAFT REQUIRED IMPORTED_TARGET raft>=0.22)
# Not find_package(dnnl): Debian's config asks for OpenCL's headers, which nothing of ours needs.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h REQUIRED)
add_library(dnnl INTERFACE)
target_link_libraries(dnnl INTERFACE ${DNNL_LIBRARY})
target_include_directories(dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
find_program(PROTOC_C NAMES protoc-c REQUIRED)
