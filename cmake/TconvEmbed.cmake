# Puts the CUDA kernel sources into the library, so that the installed package needs no file but itself.
function(tconv_embed_kernels target folder)
  if(NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/src/cuda/source.h")
    return()
  endif()
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS "${folder}/*.cuh")
  set(script "${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed.cmake")
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/generated/embedded_kernels.cpp")
  # The list is an argument of the command, so that a removed kernel regenerates the file too.
  list(JOIN kernels "|" joined)
  add_custom_command(
    OUTPUT "${generated}"
    COMMAND "${CMAKE_COMMAND}" "-DFOLDER=${folder}" "-DFILES=${joined}" "-DOUTPUT=${generated}" -P "${script}"
    DEPENDS ${kernels} "${script}"
    COMMENT "Embedding the CUDA kernel sources"
    VERBATIM)
  target_sources(${target} PRIVATE "${generated}")
endfunction()
