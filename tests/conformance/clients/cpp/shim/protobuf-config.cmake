# Debian's libprotobuf-dev has no package configuration, which the client asks for; CMake's own module finds it.
include(${CMAKE_ROOT}/Modules/FindProtobuf.cmake)
