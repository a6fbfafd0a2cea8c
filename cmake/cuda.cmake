# The CUDA toolkit and NVIDIA's libraries, for the modules that train on GPUs (kernels/cuda, worker/comm/nccl).
#
# DTD_CUDA: AUTO builds the modules if the machine has a toolkit (12 or newer), its libraries and a GPU. ON builds them without a
# GPU, too, and fails if a part is missing. OFF does not search. Libraries are searched in the toolkit, in the system, in
# build/cuda-libraries (where deploy/cuda-libraries installs them) and in Python's packages.
#
# Defines: DTD_CUDA_BUILD (the modules are built), DTD_CUDA_INCLUDES (folders of all headers that were found, even if no modules
# are built), the targets dtd::cudart, dtd::cublaslt and dtd::nccl if found, and dtd_module(), which turns a target into a
# module.
set(DTD_CUDA AUTO CACHE STRING "Modules for CUDA: AUTO (if there is a GPU), ON, OFF")
set(DTD_CUDA_SM "80;90;100" CACHE STRING "GPUs to compile for, by compute capability; PTX of the last one is for newer GPUs")
set(DTD_CUDA_LIBRARIES "${CMAKE_SOURCE_DIR}/build/cuda-libraries" CACHE PATH
  "Folder where deploy/cuda-libraries installed cuBLASLt and NCCL")
set(DTD_CUDA_BUILD OFF)
set(DTD_CUDA_INCLUDES "")

# Folders of NVIDIA's Python packages: first that of deploy/cuda-libraries, then those that python3 finds.
function(cuda_package_folders ret)
  set(folders "${DTD_CUDA_LIBRARIES}/nvidia")
  find_program(DTD_PYTHON python3)
  mark_as_advanced(DTD_PYTHON)
  if(DTD_PYTHON)
    execute_process(COMMAND "${DTD_PYTHON}" -c "import nvidia; print(';'.join(nvidia.__path__))"
      OUTPUT_VARIABLE found ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    list(APPEND folders ${found})
  endif()
  set(${ret} "${folders}" PARENT_SCOPE)
endfunction()

# cuda_library(TARGET HEADER PACKAGE NAMES...): defines an imported target if header and library are found. In a Python package
# the folder is PACKAGE, or cu13 for all of CUDA 13, and the library exists only under its versioned name.
function(cuda_library name header package)
  string(MAKE_C_IDENTIFIER "DTD_${name}" var)
  string(TOUPPER "${var}" var)
  set(places "")
  foreach(folder IN LISTS package_folders)
    list(APPEND places "${folder}/cu${CUDAToolkit_VERSION_MAJOR}" "${folder}/${package}")
  endforeach()
  # Searches again if a cached file no longer exists.
  foreach(file ${var}_INCLUDE ${var}_LIBRARY)
    if(${file} AND NOT EXISTS "${${file}}")
      unset(${file} CACHE)
    endif()
  endforeach()
  find_path(${var}_INCLUDE "${header}" HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${places} PATH_SUFFIXES include)
  find_library(${var}_LIBRARY NAMES ${ARGN} HINTS "${CUDAToolkit_LIBRARY_DIR}" PATHS ${places} PATH_SUFFIXES lib lib64)
  mark_as_advanced(${var}_INCLUDE ${var}_LIBRARY)
  if(NOT ${var}_INCLUDE OR NOT ${var}_LIBRARY)
    return()
  endif()
  add_library(dtd::${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(dtd::${name} PROPERTIES IMPORTED_LOCATION "${${var}_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${${var}_INCLUDE}")
  list(APPEND DTD_CUDA_INCLUDES "${${var}_INCLUDE}")
  list(REMOVE_DUPLICATES DTD_CUDA_INCLUDES)
  set(DTD_CUDA_INCLUDES "${DTD_CUDA_INCLUDES}" PARENT_SCOPE)
endfunction()

# The entries of DTD_CUDA_SM that the toolkit supports, and PTX of the last one for future GPUs.
function(cuda_architectures ret)
  execute_process(COMMAND "${CUDAToolkit_NVCC_EXECUTABLE}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  set(list "")
  foreach(arch IN LISTS DTD_CUDA_SM)
    if(known MATCHES "sm_${arch}[ \n\r]")
      list(APPEND list ${arch}-real)
      set(last ${arch})
    else()
      message(STATUS "CUDA ${CUDAToolkit_VERSION} does not support sm_${arch}: left out (sm_100 needs CUDA 12.8)")
    endif()
  endforeach()
  set(${ret} ${list} ${last}-virtual PARENT_SCOPE)
endfunction()

function(cuda_gpu_present ret)
  find_program(DTD_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(DTD_NVIDIA_SMI)
  set(status 1)
  if(DTD_NVIDIA_SMI)
    execute_process(COMMAND "${DTD_NVIDIA_SMI}" -L RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(status EQUAL 0)
    set(${ret} ON PARENT_SCOPE)
  else()
    set(${ret} OFF PARENT_SCOPE)
  endif()
endfunction()

# dtd_module(TARGET FILE SYMBOL COMPONENT LIBRARIES...): builds TARGET, a MODULE library, as FILE.so next to the programs, and
# installs it in lib/dtd, in the package dtd-COMPONENT (package.cmake). The module exports only SYMBOL and contains all other code of dtd that it needs. The loader searches LIBRARIES
# (cudart, cublaslt, nccl) next to the module, in ../lib, and in their present folder. A present folder inside this tree is stored
# as a path relative to the module, so that a build folder can be moved with its tree; any other folder is stored as an absolute
# path. Build and installation share one RUNPATH, because CMake would pad a longer one of the build with empty elements, and an
# empty element means the working directory.
function(dtd_module target file symbol component)
  set(map "${CMAKE_CURRENT_BINARY_DIR}/${file}.map")
  file(CONFIGURE OUTPUT "${map}" CONTENT "{ global: ${symbol}; local: *; };\n")
  target_link_options(${target} PRIVATE "-Wl,--version-script=${map}" -Wl,--exclude-libs,ALL)
  if(NOT (DTD_SANITIZE AND CMAKE_C_COMPILER_ID MATCHES "Clang")) # the symbols of Clang's sanitizers are in the program that loads the module
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${map}")
  set(runpath "$ORIGIN" "$ORIGIN/../lib")
  foreach(library IN LISTS ARGN)
    target_link_libraries(${target} PRIVATE dtd::${library})
    get_target_property(path dtd::${library} IMPORTED_LOCATION)
    get_filename_component(path "${path}" DIRECTORY)
    cmake_path(IS_PREFIX CMAKE_SOURCE_DIR "${path}" NORMALIZE inside)
    if(inside)
      file(RELATIVE_PATH path "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}" "${path}")
      list(APPEND runpath "$ORIGIN/${path}")
    elseif(NOT path IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
      list(APPEND runpath "${path}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES runpath)
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "${file}" LINKER_LANGUAGE C
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${runpath}")
  install(TARGETS ${target} LIBRARY DESTINATION "lib/dtd" COMPONENT ${component})
  set_property(GLOBAL APPEND PROPERTY DTD_MODULES ${target})
  set_property(GLOBAL APPEND PROPERTY DTD_MODULE_PACKAGES ${component})
endfunction()

function(cuda_refuse)
  list(JOIN ARGN "" sentence)
  if(DTD_CUDA STREQUAL "AUTO")
    message(STATUS "No CUDA modules: ${sentence}")
  else()
    message(FATAL_ERROR "DTD_CUDA=${DTD_CUDA}, but ${sentence}")
  endif()
endfunction()

if(NOT DTD_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "DTD_CUDA must be AUTO, ON or OFF, not \"${DTD_CUDA}\"")
endif()
if(NOT DTD_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit 12 QUIET)
endif()
if(CUDAToolkit_FOUND)
  cuda_package_folders(package_folders)
  cuda_library(cudart cuda_runtime_api.h cuda_runtime cudart libcudart.so.${CUDAToolkit_VERSION_MAJOR})
  cuda_library(cublaslt cublasLt.h cublas cublasLt libcublasLt.so.${CUDAToolkit_VERSION_MAJOR})
  cuda_library(nccl nccl.h nccl nccl libnccl.so.2)
  cuda_architectures(architectures)
endif()

cuda_gpu_present(DTD_CUDA_GPU)
if(DTD_CUDA STREQUAL "OFF")
elseif(DTD_SANITIZE OR DTD_FUZZ)
  if(DTD_CUDA STREQUAL "ON")
    cuda_refuse("a build with sanitizers has no CUDA modules: tests of label cuda-host run their sources under them")
  endif()
elseif(NOT CUDAToolkit_FOUND)
  cuda_refuse("there is no CUDA toolkit of version 12 or newer (nvcc in PATH, or CUDAToolkit_ROOT)")
elseif(NOT CUDAToolkit_NVCC_EXECUTABLE)
  cuda_refuse("the CUDA toolkit at ${CUDAToolkit_TARGET_DIR} has no nvcc")
elseif(NOT TARGET dtd::cudart OR NOT TARGET dtd::cublaslt)
  cuda_refuse("cublasLt.h and libcublasLt.so of CUDA ${CUDAToolkit_VERSION_MAJOR} were not found: run "
    "deploy/cuda-libraries, which installs them in ${DTD_CUDA_LIBRARIES}")
elseif(DTD_CUDA STREQUAL "AUTO" AND NOT DTD_CUDA_GPU)
  message(STATUS "No CUDA modules: nvidia-smi lists no GPU (DTD_CUDA=ON builds them without one)")
else()
  set(DTD_CUDA_BUILD ON)
endif()

if(DTD_CUDA_BUILD)
  set(CMAKE_CUDA_ARCHITECTURES ${architectures})
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  enable_language(CUDA)
  # Asserts stay enabled, as in C.
  string(REPLACE "-DNDEBUG" "" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
  string(REPLACE "-DNDEBUG" "" CMAKE_CUDA_FLAGS_RELWITHDEBINFO "${CMAKE_CUDA_FLAGS_RELWITHDEBINFO}")
  get_target_property(DTD_CUDA_CUBLASLT dtd::cublaslt IMPORTED_LOCATION)
  message(STATUS "CUDA modules: toolkit ${CUDAToolkit_VERSION}, ${DTD_CUDA_CUBLASLT}, ${architectures}")
  if(NOT TARGET dtd::nccl)
    message(STATUS "nccl.h and libnccl.so were not found: workers with GPUs communicate through host memory "
      "(deploy/cuda-libraries installs NCCL)")
  endif()
endif()

# Compiler flags of all kernel files.
add_library(dtd_cuda_flags INTERFACE)
target_include_directories(dtd_cuda_flags INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}")
target_include_directories(dtd_cuda_flags SYSTEM INTERFACE ${DTD_CUDA_INCLUDES})
set(host_flags -Wall -Wextra -Wno-unused-parameter -fno-strict-aliasing -fvisibility=hidden)
if(DTD_WERROR)
  list(APPEND host_flags -Werror)
  target_compile_options(dtd_cuda_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
endif()
list(JOIN host_flags "," host_flags)
target_compile_options(dtd_cuda_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_flags}>")
