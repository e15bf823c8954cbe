// Decides which secret key the ranks of a job get, and how much security they ask for.
//
// A key goes from the launcher to the agents in the start order (cli/common/records.h), and from an agent to its ranks in a
// descriptor that they inherit. It is never an argument of a process, nor a text in the environment of a rank.
#pragma once

#include <array>
#include <string_view>

#include "cli/launch/job.h"
#include "cli/launch/launch.h"
#include "unisono/options.h"
#include "unisono/status.h"

namespace unisono::cli {

// The variables that give a process its key (include/unisono/options.h). A rank gets none of those that its launcher has.
inline constexpr std::array<std::string_view, 3> key_variables{"UNISONO_KEY", "UNISONO_KEY_FILE", "UNISONO_KEY_FD"};
bool is_key_variable(std::string_view setting);  // `setting` is NAME=value

// Sets job.key, and the security in job.environment, from --key-file, --security, --env and the environment. Call it when
// job.environment is complete. Without a key from the user, it makes a new one.
//
// It makes none if --rendezvous or UNISONO_RENDEZVOUS says where to meet. Processes that another launcher starts may meet
// there, too, and they could not know the key.
//
// A text in UNISONO_KEY is erased from the environment of this process, so that `ps e` does not show it.
Status set_security(const LaunchOptions& options, JobOptions& job);

// Applies --key-file and --security to a rank that this tool did not launch itself. Ranks of the own launcher find the key in
// the descriptor, and the file may not exist on their host.
Status set_group_security(const LaunchOptions& options, Options& group);

}  // namespace unisono::cli
