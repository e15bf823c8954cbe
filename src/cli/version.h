// Which build this is.
#pragma once

#include <string>

#ifndef UNISONO_VERSION
#define UNISONO_VERSION "0.1.0"
#endif
#ifndef UNISONO_COMMIT
#define UNISONO_COMMIT ""
#endif

namespace unisono::cli {

inline constexpr const char* version_text = UNISONO_VERSION;
inline constexpr const char* commit_text = UNISONO_COMMIT;  // empty where the build does not know

}  // namespace unisono::cli
