# Finds Scotch with 64-bit indices and makes the target Scotch::Scotch. Debian's libscotch-dev holds it as static libraries
# in a folder of its own.
find_path(SCOTCH_INCLUDE_DIR scotch.h PATH_SUFFIXES scotch-int64)
find_library(SCOTCH_LIBRARY libscotch.a PATH_SUFFIXES scotch-int64)
find_library(SCOTCH_ERROR_LIBRARY libscotcherr.a PATH_SUFFIXES scotch-int64)
if(SCOTCH_INCLUDE_DIR)
  file(STRINGS ${SCOTCH_INCLUDE_DIR}/scotch.h SCOTCH_VERSION_LINES
       REGEX "#define SCOTCH_(VERSION|RELEASE|PATCHLEVEL) +[0-9]+")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" SCOTCH_VERSION "${SCOTCH_VERSION_LINES}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Scotch REQUIRED_VARS SCOTCH_LIBRARY SCOTCH_ERROR_LIBRARY SCOTCH_INCLUDE_DIR
  VERSION_VAR SCOTCH_VERSION)
if(Scotch_FOUND AND NOT TARGET Scotch::Scotch)
  find_package(ZLIB REQUIRED)
  add_library(Scotch::Error STATIC IMPORTED)
  set_target_properties(Scotch::Error PROPERTIES IMPORTED_LOCATION ${SCOTCH_ERROR_LIBRARY})
  add_library(Scotch::Scotch STATIC IMPORTED)
  set_target_properties(Scotch::Scotch PROPERTIES
    IMPORTED_LOCATION ${SCOTCH_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${SCOTCH_INCLUDE_DIR})
  target_link_libraries(Scotch::Scotch INTERFACE Scotch::Error ZLIB::ZLIB Threads::Threads m)
endif()
mark_as_advanced(SCOTCH_INCLUDE_DIR SCOTCH_LIBRARY SCOTCH_ERROR_LIBRARY)
