/* The version of the library, defined only here; CMakeLists.txt reads it from this file (C99 and C++). */
#ifndef UNISONO_VERSION_H
#define UNISONO_VERSION_H

#define UNISONO_VERSION "0.1.0"

#endif /* UNISONO_VERSION_H */
