/* The version of the library: the only place that says it. CMakeLists.txt reads the project's version from here. C99 and C++.
 */
#ifndef UNISONO_VERSION_H
#define UNISONO_VERSION_H

#define UNISONO_VERSION "0.1.0"

#endif /* UNISONO_VERSION_H */
