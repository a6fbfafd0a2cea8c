# dtd_flags has the compiler flags of all targets.
option(DTD_WERROR "Warnings are errors" ON)
add_library(dtd_flags INTERFACE)
target_include_directories(dtd_flags INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
target_compile_definitions(dtd_flags INTERFACE _GNU_SOURCE DTD_VERSION="${PROJECT_VERSION}")
target_compile_options(dtd_flags INTERFACE -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
  -Wno-unused-parameter -fno-strict-aliasing -ffp-contract=off $<$<CONFIG:Release>:-O3>)
if(DTD_WERROR)
  target_compile_options(dtd_flags INTERFACE -Werror)
endif()
# Asserts check invariants of dtd itself and stay enabled in every build.
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
