# dtd_test(FILE [LIBS lib...] [LABELS label...] [TIMEOUT seconds] [ENV VAR=VALUE...])
# Builds one executable per file and adds one ctest per TEST(name) in it, each in a process of its own. The default label is `unit`.
# The timeout is also the cost, so ctest starts the longest tests first.
function(dtd_test file)
  cmake_parse_arguments(T "" "TIMEOUT" "LIBS;LABELS;ENV" ${ARGN})
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 60)
  endif()
  file(RELATIVE_PATH rel "${CMAKE_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  string(REGEX REPLACE "\\.c$" "" name "${rel}")
  string(REPLACE "/" "." name "${name}")
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE dtd_flags dtd_testlib ${T_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(STRINGS ${file} cases REGEX "^TEST\\([a-z0-9_]+\\)")
  foreach(line IN LISTS cases)
    string(REGEX REPLACE "^TEST\\(([a-z0-9_]+)\\).*" "\\1" case "${line}")
    add_test(NAME ${name}.${case} COMMAND ${name} ${case})
    set_tests_properties(${name}.${case} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} COST ${T_TIMEOUT}
      SKIP_RETURN_CODE 77
      ENVIRONMENT "DTD_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};DTD_SOURCE=${CMAKE_SOURCE_DIR};${T_ENV}")
  endforeach()
endfunction()

# dtd_label(REGEX LABEL... [EXCEPT REGEX]): adds labels to those tests of this folder, declared so far, whose names match.
# tests/run selects tests by these labels, besides those of a subject (unit, parity, chaos, ...):
#   release      a unit test that tests/run without options runs in the release build, because the sanitizer builds skip it
#   asan-slice   slow under the address sanitizer: runs there only in CI's slices and with --all
#   asan-all     slower still, and with no memory handling of its own: runs there only with --all
#   tsan         has threads: also runs under the thread sanitizer, in CI's slices and with --all
#   tsan-all     the same, only with --all
#   tsan-jobs    a whole job that --all repeats under the thread sanitizer
#   one-build    takes minutes: runs in the release build only
#   long         left to the slices of CI, to --all and to -L of its subject
function(dtd_label regex)
  cmake_parse_arguments(L "" "EXCEPT" "" ${ARGN})
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    if(test MATCHES "${regex}" AND NOT (L_EXCEPT AND test MATCHES "${L_EXCEPT}"))
      set_property(TEST ${test} APPEND PROPERTY LABELS ${L_UNPARSED_ARGUMENTS})
    endif()
  endforeach()
endfunction()

# dtd_fuzzer(NAME FILE LIBS...): builds a fuzzer from LLVMFuzzerTestOneInput in FILE. With DTD_FUZZ it is a libFuzzer program;
# otherwise a ctest (label fuzz) replays tests/fuzz/corpus/NAME.
function(dtd_fuzzer name file)
  set(target fuzz_${name})
  if(DTD_FUZZ)
    add_executable(${target} ${file})
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(${target} ${file} "${CMAKE_SOURCE_DIR}/tests/lib/fuzz_replay.c")
  endif()
  target_link_libraries(${target} PRIVATE dtd_flags ${ARGN})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  if(NOT DTD_FUZZ)
    add_test(NAME fuzz.${name} COMMAND ${target} "${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name}")
    set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT 120)
  endif()
endfunction()
