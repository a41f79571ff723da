# What `cmake --install` and `cpack -G DEB` put where:
#
#   bin                     meshard and meshard-models
#   lib                     a shared library for each component
#   lib/cmake/meshard       what find_package(meshard) reads
#   lib/meshard/torch       a link to LibTorch's folder, where the programs and libraries look for it
#   include/meshard         headers, by their path from the root of the sources
#   share/meshard           setup.sh, which brings LibTorch
#   share/doc/meshard       licence, pages and examples
#
# All paths in it are relative: the tree may be moved. LibTorch is not part of it.
option(MESHARD_INSTALL "Make shared libraries of the compiled files, and install them, headers and programs" ${PROJECT_IS_TOP_LEVEL})
include(CMakePackageConfigHelpers)

# The library of a folder for the programs of others: shared, made of the very files that were compiled for the static one. So nothing is compiled twice, who
# uses it needs none of the libraries inside it (METIS, VTK, HDF5, ...) to build. Called last in the folder's CMakeLists.txt, where all is linked.
# REGISTERS: it registers something before main, so that a program must have it though it may call nothing in it.
# HEADERS: those for others, if not all of the folder's but what EXCLUDE_HEADERS matches.
function(meshard_install_library component)
  if(NOT MESHARD_INSTALL)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg REGISTERS "" "HEADERS;EXCLUDE_HEADERS")
  set(static meshard_${component})
  if(TARGET ${static}_static)
    set(static ${static}_static)
  endif()
  set(shared meshard_${component}_shared)
  add_library(${shared} SHARED $<TARGET_OBJECTS:${static}>)
  set_target_properties(${shared} PROPERTIES LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib OUTPUT_NAME meshard_${component} EXPORT_NAME ${component}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} INSTALL_RPATH "$ORIGIN;$ORIGIN/meshard/torch/lib")
  target_compile_features(${shared} INTERFACE cxx_std_20)
  target_include_directories(${shared} INTERFACE $<INSTALL_INTERFACE:include/meshard>)
  # Static libraries inside (Scotch) stay to themselves: a program may have another version of its own.
  target_link_options(${shared} PRIVATE LINKER:--exclude-libs,ALL LINKER:-z,defs)
  if(arg_REGISTERS)
    target_link_options(${shared} INTERFACE "$<INSTALL_INTERFACE:LINKER:--push-state,--no-as-needed,$<TARGET_FILE:meshard::${component}>,--pop-state>")
  endif()
  get_target_property(libraries ${static} INTERFACE_LINK_LIBRARIES)
  foreach(library IN LISTS libraries)
    set(scope PUBLIC)
    if(library MATCHES "^\\$<LINK_ONLY:(.*)>$")
      set(scope PRIVATE)
      set(library ${CMAKE_MATCH_1})
    elseif(IS_ABSOLUTE ${library})   # what is private to a static library, and no target
      set(scope PRIVATE)
    endif()
    string(REGEX REPLACE "^meshard(::|_)(.*)$" "\\2" other ${library})
    if(TARGET meshard_${other}_shared)
      set(library meshard_${other}_shared)
    endif()
    target_link_libraries(${shared} ${scope} ${library})
  endforeach()
  meshard_export(${component} ${shared})

  if(arg_HEADERS)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    foreach(header IN LISTS arg_HEADERS)
      cmake_path(GET header PARENT_PATH room)
      install(FILES ${header} DESTINATION include/meshard/${folder}/${room})
    endforeach()
  else()
    set(excluded "")
    foreach(pattern IN LISTS arg_EXCLUDE_HEADERS)
      list(APPEND excluded REGEX "${pattern}" EXCLUDE)
    endforeach()
    install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/ DESTINATION include/meshard/${component} FILES_MATCHING PATTERN *.h ${excluded})
  endif()
endfunction()

# Makes a component of a target that links others', all by their targets for others.
function(meshard_export component target)
  set(needs "")
  get_target_property(libraries ${target} LINK_LIBRARIES)
  foreach(library IN LISTS libraries)
    if(library MATCHES "^meshard_(.*)_shared$")
      get_property(others GLOBAL PROPERTY MESHARD_NEEDS_${CMAKE_MATCH_1})
      list(APPEND needs ${others} ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES needs)
  set_property(GLOBAL PROPERTY MESHARD_NEEDS_${component} ${needs})
  set_property(GLOBAL APPEND PROPERTY MESHARD_COMPONENTS ${component})
  install(TARGETS ${target} EXPORT meshard-${component} LIBRARY DESTINATION lib ARCHIVE DESTINATION lib)
  install(EXPORT meshard-${component} NAMESPACE meshard:: FILE meshard-${component}.cmake DESTINATION lib/cmake/meshard)
endfunction()

# Called last of all.
function(meshard_finish_install)
  if(NOT MESHARD_INSTALL)
    return()
  endif()
  set(programs meshard)
  if(MESHARD_WITH_TORCH)
    list(APPEND programs meshard-models)
    set_target_properties(meshard-models PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/meshard/torch/lib")
  endif()
  install(TARGETS ${programs} RUNTIME DESTINATION bin)

  get_property(MESHARD_COMPONENTS GLOBAL PROPERTY MESHARD_COMPONENTS)
  get_directory_property(TORCH_VERSION DIRECTORY ${PROJECT_SOURCE_DIR}/sharding DEFINITION TorchWheel_VERSION)
  set(MESHARD_NEEDS "")
  foreach(component IN LISTS MESHARD_COMPONENTS)
    get_property(needs GLOBAL PROPERTY MESHARD_NEEDS_${component})
    list(JOIN needs " " needs)
    string(APPEND MESHARD_NEEDS "set(meshard_needs_${component} ${needs})\n")
  endforeach()
  list(JOIN MESHARD_COMPONENTS " " MESHARD_COMPONENTS)
  set(made ${PROJECT_BINARY_DIR}/install)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/apps/install/meshardConfig.cmake.in ${made}/meshardConfig.cmake
    INSTALL_DESTINATION lib/cmake/meshard NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file(${made}/meshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${made}/meshardConfig.cmake ${made}/meshardConfigVersion.cmake DESTINATION lib/cmake/meshard)

  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/meshard RENAME copyright)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION share/doc/meshard)
  if(MESHARD_WITH_TORCH)
    install(FILES ${PROJECT_SOURCE_DIR}/sharding/FindTorchWheel.cmake DESTINATION lib/cmake/meshard)
    install(PROGRAMS ${PROJECT_SOURCE_DIR}/apps/setup.sh DESTINATION share/meshard)
    install(DIRECTORY DESTINATION lib/meshard)
    # What is staged (DESTDIR, as for packages) goes to another machine, where this machine's LibTorch is not.
    install(CODE "
      if(\"\$ENV{DESTDIR}\" STREQUAL \"\")
        set(link \"\${CMAKE_INSTALL_PREFIX}/lib/meshard/torch\")
        message(STATUS \"Linking: \${link} -> ${TORCH_ROOT}\")
        file(CREATE_LINK \"${TORCH_ROOT}\" \"\${link}\" SYMBOLIC)
        list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${link}\")
      endif()")
  endif()

  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME meshard)
  set(CPACK_PACKAGE_VENDOR "the authors of meshard")
  set(CPACK_PACKAGE_CONTACT "the authors of meshard <maintainers@meshard.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION "Programs, libraries and headers that cut CFD meshes into shards with ghost layers, and train attention
 models on them over many ranks. LibTorch, which the models need, is not part of it: /usr/share/meshard/setup.sh brings it.")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)
  # What is linked, but LibTorch.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}/lib" "${TORCH_ROOT}/lib")
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-venv, fonts-dejavu-core")   # for setup.sh; for pictures
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake, g++, nlohmann-json3-dev, libyaml-cpp-dev, openmpi-bin")
  include(CPack)
endfunction()
