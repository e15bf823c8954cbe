/* Marks the names that the shared library exports; it hides all others (C99 and C++).
 *
 * cmake/unisono.map gives the names their versions. In the static library the mark changes nothing. */
#ifndef UNISONO_EXPORT_H
#define UNISONO_EXPORT_H

#if defined(__GNUC__)
#define UNISONO_EXPORT __attribute__((visibility("default")))
#else
#define UNISONO_EXPORT
#endif

#endif /* UNISONO_EXPORT_H */
