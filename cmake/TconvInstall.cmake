# The installable C++ package: find_package(tconv) gives tconv::tconv, from any prefix.
include(CMakePackageConfigHelpers)

set(tconv_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tconv")

install(TARGETS tconv EXPORT tconvTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cpp
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY include/tconv DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT cpp FILES_MATCHING PATTERN "*.h")
install(EXPORT tconvTargets NAMESPACE tconv:: DESTINATION "${tconv_package_dir}" COMPONENT cpp)
configure_package_config_file(cmake/tconvConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/tconvConfig.cmake"
                              INSTALL_DESTINATION "${tconv_package_dir}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/tconvConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/tconvConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/tconvConfigVersion.cmake"
        DESTINATION "${tconv_package_dir}" COMPONENT cpp)
