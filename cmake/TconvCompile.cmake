# Warnings and sanitizers, the same for every target of the project. There is no -march here on purpose: Highway builds
# its kernels for each instruction set and chooses at run time.
function(tconv_compile_options target)
  target_compile_options(
    ${target} PRIVATE -Wall -Wextra -Wpedantic -Wnon-virtual-dtor -Woverloaded-virtual
                      $<IF:$<CXX_COMPILER_ID:GNU>,-Wshadow=local,-Wshadow>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 takes the concatenation of a literal and a string for an overlapping copy (GCC bug 105651).
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(TCONV_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endif()
endfunction()
