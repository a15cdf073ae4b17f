# cmake -DFOLDER=folder -DFILES=a|b|... -DOUTPUT=file.cpp -P embed.cmake
# Writes a C++ file with a table of the names (relative to FOLDER) and texts of FILES.
cmake_minimum_required(VERSION 3.25)
set(delimiter "tconv_text")
set(piece_length 8000)  # compilers need not accept string literals beyond 65,536 characters

function(append_literals text)
  set(result "")
  while(TRUE)
    string(LENGTH "${text}" length)
    if(length EQUAL 0)
      break()
    endif()
    set(piece "${text}")
    set(cut ${length})
    if(length GREATER piece_length)
      # Cut after a line, never inside a multi-byte character.
      string(SUBSTRING "${text}" 0 ${piece_length} piece)
      string(FIND "${piece}" "\n" cut REVERSE)
      if(cut LESS 0)
        message(FATAL_ERROR "${name} has a line longer than ${piece_length} bytes")
      endif()
      math(EXPR cut "${cut} + 1")
      string(SUBSTRING "${text}" 0 ${cut} piece)
    endif()
    string(APPEND result "     R\"${delimiter}(${piece})${delimiter}\"\n")
    string(SUBSTRING "${text}" ${cut} -1 text)
  endwhile()
  set(literals "${result}" PARENT_SCOPE)
endfunction()

set(entries "")
set(count 0)
string(REPLACE "|" ";" files "${FILES}")
foreach(file IN LISTS files)
  file(RELATIVE_PATH name "${FOLDER}" "${file}")
  file(READ "${file}" content)
  file(SIZE "${file}" size)
  string(LENGTH "${content}" length)
  string(FIND "${content}" ")${delimiter}\"" clash)
  if(length EQUAL 0 OR NOT length EQUAL size OR NOT clash EQUAL -1)
    message(FATAL_ERROR "${file} can't be embedded: it is empty, holds a zero byte or the text )${delimiter}\"")
  endif()
  append_literals("${content}")
  string(APPEND entries "    {\"${name}\",\n${literals}    },\n")
  math(EXPR count "${count} + 1")
endforeach()

# An array of no elements needs other words in C++.
if(count EQUAL 0)
  set(table "")
  set(result "{}")
else()
  set(table "namespace {\n\nconstexpr std::array<EmbeddedFile, ${count}> kFiles{{\n${entries}}};\n\n}  // namespace\n\n")
  set(result "kFiles")
endif()

file(WRITE "${OUTPUT}" "// Generated from the kernel sources.
#include <array>

#include \"cuda/source.h\"

namespace tconv::cuda {
${table}std::span<const EmbeddedFile> embedded_files() { return ${result}; }

}  // namespace tconv::cuda
")
