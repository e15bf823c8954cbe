// Annotations that name the data that a mutex guards. clang checks them at compile time (-Wthread-safety; tools/check_locks);
// for other compilers they are empty. The names are those of https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.
//
// The analysis looks at one function at a time and does not follow calls into lambdas: a lambda that is called with the mutex
// held is given a reference to the guarded object, or calls Mutex::assert_held().
#pragma once

#if defined(__clang__)
#define UNISONO_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define UNISONO_THREAD_ATTRIBUTE(x)
#endif

// Types.
#define UNISONO_CAPABILITY(name) UNISONO_THREAD_ATTRIBUTE(capability(name))
#define UNISONO_SCOPED_CAPABILITY UNISONO_THREAD_ATTRIBUTE(scoped_lockable)
// Members: code may touch them only while it holds the mutex.
#define UNISONO_GUARDED_BY(mutex) UNISONO_THREAD_ATTRIBUTE(guarded_by(mutex))
#define UNISONO_POINTEE_GUARDED_BY(mutex) UNISONO_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// Functions: the caller holds the mutex, or must not hold it.
#define UNISONO_REQUIRES(...) UNISONO_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define UNISONO_EXCLUDES(...) UNISONO_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Functions: the mutex is held, or free, when they return.
#define UNISONO_ACQUIRE(...) UNISONO_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define UNISONO_RELEASE(...) UNISONO_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define UNISONO_TRY_ACQUIRE(...) UNISONO_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define UNISONO_ASSERT_CAPABILITY(mutex) UNISONO_THREAD_ATTRIBUTE(assert_capability(mutex))
// Functions that the analysis cannot follow. Each use says why it is right.
#define UNISONO_NO_THREAD_SAFETY_ANALYSIS UNISONO_THREAD_ATTRIBUTE(no_thread_safety_analysis)
