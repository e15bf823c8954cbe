/* Marks what the shared library exports; everything without the mark is hidden in it (C99 and C++).
 *
 * Which names get which version is said in cmake/unisono.map. In the static library the mark changes nothing. */
#ifndef UNISONO_EXPORT_H
#define UNISONO_EXPORT_H

#if defined(__GNUC__)
#define UNISONO_EXPORT __attribute__((visibility("default")))
#else
#define UNISONO_EXPORT
#endif

#endif /* UNISONO_EXPORT_H */
