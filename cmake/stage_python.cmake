# cmake -DSOURCE=project -DPACKAGE=folder "-DLIBRARY=path;name" -P stage_python.cmake
# Copies what the package needs beside the libraries that the build puts there, and removes Python files that are gone.
cmake_minimum_required(VERSION 3.25)
file(GLOB_RECURSE staged RELATIVE "${PACKAGE}" "${PACKAGE}/*.py")
foreach(file IN LISTS staged)
  if(NOT EXISTS "${SOURCE}/python/tconv/${file}")
    file(REMOVE "${PACKAGE}/${file}")
  endif()
endforeach()
file(COPY "${SOURCE}/python/tconv/" DESTINATION "${PACKAGE}"
     FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "export_parts/*" PATTERN "__pycache__" EXCLUDE)
if(EXISTS "${SOURCE}/benchmarks/problems.json")
  file(COPY "${SOURCE}/benchmarks/problems.json" DESTINATION "${PACKAGE}")
endif()
if(LIBRARY)
  list(GET LIBRARY 0 path)
  list(GET LIBRARY 1 name)
  file(COPY_FILE "${path}" "${PACKAGE}/${name}" ONLY_IF_DIFFERENT)
endif()
