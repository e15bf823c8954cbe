// These annotations say which mutex guards which data. clang checks them at compile time (-Wthread-safety; tools/check_locks).
// For other compilers the macros are empty. The names are those of https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.
//
// The analysis checks one function at a time, and does not follow calls into lambdas. So a lambda that runs with the mutex held
// either gets a reference to the guarded object, or calls Mutex::assert_held().
#pragma once

#if defined(__clang__)
#define UNISONO_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define UNISONO_THREAD_ATTRIBUTE(x)
#endif

// These two mark types:
#define UNISONO_CAPABILITY(name) UNISONO_THREAD_ATTRIBUTE(capability(name))
#define UNISONO_SCOPED_CAPABILITY UNISONO_THREAD_ATTRIBUTE(scoped_lockable)
// These two mark members. Code may access such a member only while it holds the mutex:
#define UNISONO_GUARDED_BY(mutex) UNISONO_THREAD_ATTRIBUTE(guarded_by(mutex))
#define UNISONO_POINTEE_GUARDED_BY(mutex) UNISONO_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// These mark functions. The caller must hold the mutex (REQUIRES), or must not hold it (EXCLUDES):
#define UNISONO_REQUIRES(...) UNISONO_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define UNISONO_EXCLUDES(...) UNISONO_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// These mark functions that lock the mutex, unlock it, or assert that it is held:
#define UNISONO_ACQUIRE(...) UNISONO_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define UNISONO_RELEASE(...) UNISONO_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define UNISONO_TRY_ACQUIRE(...) UNISONO_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define UNISONO_ASSERT_CAPABILITY(mutex) UNISONO_THREAD_ATTRIBUTE(assert_capability(mutex))
// This marks functions that the analysis cannot follow. Each function with this mark must explain why its locking is correct.
#define UNISONO_NO_THREAD_SAFETY_ANALYSIS UNISONO_THREAD_ATTRIBUTE(no_thread_safety_analysis)
