# The PyTorch front, and an importable package in TCONV_PYTHON_DIR that carries all it needs but PyTorch itself.
#
# PyTorch's own find_package(Torch) is not used: for a CUDA build of PyTorch it insists on a CUDA toolkit, which this
# library does without. Nothing here depends on a version of Python.
set(tconv_torch_lib "${TCONV_TORCH_DIR}/lib")
foreach(needed include/torch/library.h lib/libtorch.so lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS "${TCONV_TORCH_DIR}/${needed}")
    message(FATAL_ERROR "TCONV_TORCH_DIR must be the installed torch package, but ${TCONV_TORCH_DIR}/${needed} is missing")
  endif()
endforeach()

set(tconv_package "${TCONV_PYTHON_DIR}/tconv")
set_target_properties(tconv PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${tconv_package}")

file(GLOB TCONV_TORCH_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/torch/*.cpp")
if(TCONV_TORCH_SOURCES)
  add_library(tconv_torch MODULE ${TCONV_TORCH_SOURCES})
  tconv_compile_options(tconv_torch)
  target_include_directories(tconv_torch SYSTEM PRIVATE "${TCONV_TORCH_DIR}/include"
                                                        "${TCONV_TORCH_DIR}/include/torch/csrc/api/include")
  target_compile_definitions(tconv_torch PRIVATE _GLIBCXX_USE_CXX11_ABI=1)
  # at::parallel_for is code in PyTorch's headers. The OpenMP library is the one that PyTorch brings, found through
  # libtorch_cpu.so; Clang calls another one, which is not there, and leaves the work to the library's own threads.
  target_compile_options(tconv_torch PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-fopenmp>")
  target_link_libraries(tconv_torch PRIVATE tconv "${tconv_torch_lib}/libtorch.so" "${tconv_torch_lib}/libtorch_cpu.so"
                                            "${tconv_torch_lib}/libc10.so")
  # PyTorch's libraries are loaded before this one by `import torch`: no path to them is written into the file.
  set_target_properties(tconv_torch PROPERTIES PREFIX "lib" LIBRARY_OUTPUT_DIRECTORY "${tconv_package}"
                                               BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
  install(TARGETS tconv_torch LIBRARY DESTINATION tconv COMPONENT python)
endif()

# Highway travels with the package when it is a shared library. A list, because it may be empty.
set(tconv_hwy_copy "")
get_target_property(tconv_hwy_type hwy::hwy TYPE)
if(tconv_hwy_type STREQUAL "SHARED_LIBRARY")
  set(tconv_hwy_copy "$<TARGET_FILE:hwy::hwy>" "$<TARGET_SONAME_FILE_NAME:hwy::hwy>")
  install(FILES "$<TARGET_FILE:hwy::hwy>" DESTINATION tconv RENAME "$<TARGET_SONAME_FILE_NAME:hwy::hwy>" COMPONENT python)
endif()
add_custom_target(
  tconv_python ALL
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}" "-DPACKAGE=${tconv_package}"
          "-DLIBRARY=${tconv_hwy_copy}" -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/stage_python.cmake"
  COMMENT "Putting the Python package together"
  VERBATIM)

install(TARGETS tconv LIBRARY DESTINATION tconv COMPONENT python)
install(FILES benchmarks/problems.json DESTINATION tconv COMPONENT python OPTIONAL)
