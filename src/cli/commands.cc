// The table of commands of `unisono`, and the tool's help texts.
#include "cli/commands.h"

#include "cli/common/commands.h"
#include "cli/common/job_outcome.h"
#include "cli/launch/agent.h"
#include "cli/launch/launch_links.h"

namespace unisono::cli {
namespace {

constexpr Command command_table[] = {
    {"launch", "run a program as many ranks, here or on several hosts", run_launch, launch_syntax},
    {"bench", "measure collectives, and check every result", run_bench, bench_syntax},
    {"tune", "find the quickest schedules here, and write them to a file for groups", run_tune, tune_syntax},
    {"doctor", "examine this machine, or every pair of ranks, and say how to fix what is wrong", run_doctor, doctor_syntax},
    {"top", "show live what each rank does, and which rank it waits for", run_top, top_syntax},
    {"explain", "explain which rank delays or broke a group", run_explain, explain_syntax},
    {"trace", "write the last operations of all ranks as a Chrome trace", run_trace, trace_syntax},
    {"metrics", "print the counters of all groups as OpenMetrics text", run_metrics, metrics_syntax},
    {"simulate", "run the engine over virtual links with faults, by seed", run_simulate, simulate_syntax},
    {"codec", "try the codecs on elements of your own: how small, how exact", run_codec, codec_syntax},
    {"key", "make the secret key of a job", run_key, key_syntax},
    {"rendezvous", "serve a rendezvous for jobs, apart from any rank", run_rendezvous, rendezvous_syntax},
    {"lab", "run a command of unisono-lab, the tool for studies of methods", run_lab, lab_syntax},
    {"agent", "", [](const Arguments&) { return run_agent(); }, nullptr},  // launch starts an agent on each host
    {emulated_rank_command, "", run_emulated_rank, nullptr},  // launch --rate starts each rank through this command
};

constexpr MovedCommand moved_table[] = {
    {"bench compress", "unisono-lab bench compress"},
    {"simulate arc", "unisono-lab simulate arc"},
    {"simulate averaging", "unisono-lab simulate averaging"},
    {"simulate loss", "unisono-lab simulate loss"},
    {"simulate elastic", "unisono-lab simulate elastic"},
    {"simulate churn-trace", "unisono-lab simulate churn-trace"},
    {"drop-compute", "unisono-lab drop-compute"},
};

constexpr std::string_view first_steps = R"(
First steps:
  unisono launch -n 4 -- ./train --epochs 3       four ranks on this machine
  unisono launch --hosts a:2,b:2 -- ./train       two ranks on each of two hosts, through ssh
  unisono bench all-reduce -n 4                   how fast is it here, and is it right?
  unisono tune -n 4                               could another schedule be quicker?
  unisono doctor --hosts a:2,b:2                  what is wrong with these machines and their links?
  unisono explain                                 why does the job hang?
  unisono launch --help                           each command explains itself

Exit codes: 0 all is well; 1 a measurement or check failed; 2 the command line is wrong; 125 to 127 and 128 + signal:
see 'unisono launch --help'. Standard output carries data, standard error everything else.
)";

constexpr Variable variable_table[] = {
    {"RANK, WORLD_SIZE",
     "Rank of this process, and number of processes, as torchrun and unisono launch set them. The variables of Open MPI, MPICH "
     "and Slurm are understood, too."},
    {"MASTER_ADDR, MASTER_PORT", "Address at which rank 0 listens for the other ranks."},
    {"UNISONO_RANK, UNISONO_WORLD_SIZE", "Like RANK and WORLD_SIZE, and take precedence over them."},
    {"UNISONO_RENDEZVOUS",
     "Where processes meet: tcp://host:port or file:///path. Believed before MASTER_ADDR and MASTER_PORT."},
    {"UNISONO_JOB", "Name of the job. It distinguishes jobs that use one rendezvous address."},
    {"UNISONO_KEY_FILE, UNISONO_KEY",
     "The secret key of the job: a file that unisono key wrote, or the 64 digits themselves. With a key, links are encrypted."},
    {"UNISONO_KEY_FD", "An inherited descriptor that holds the key; unisono launch sets it."},
    {"CREDENTIALS_DIRECTORY", "Without the three above: the file unisono_key in this folder of systemd, if it is there."},
    {"UNISONO_SECURITY", "auto; required: joining fails without a key; off: no encryption, and no warning."},
    {"UNISONO_JOIN_RUNNING", "1: wait to be admitted when a running group is next re-formed."},
    {"UNISONO_TRANSPORT", "auto, shm, tcp or udp."},
    {"UNISONO_RATE_LIMIT_MBPS", "With udp: the most that a process sends, in Mbit/s; 0: adapted to the network."},
    {"UNISONO_DATAGRAM_CHECKSUM",
     "With udp: 1: a checksum in each datagram instead of an authentication, where both ends ask for it."},
    {"UNISONO_LOSE_PER_MILLE",
     "For tests with losses: of 1000 datagrams that arrive, the transport udp drops so many at random; 0 to 999."},
    {"UNISONO_INTERFACE", "Name or address of the network interface to listen on."},
    {"UNISONO_STREAMS_PER_LINK", "TCP connections per pair of hosts; 0: automatic."},
    {"UNISONO_TUNING", "A file that unisono tune wrote, by which schedules and connections are chosen."},
    {"UNISONO_CODEC", "Codec of calls that name none: plain, int8, int8/int4:group=64, ...; plain by default."},
    {"UNISONO_COMPUTE_THREADS",
     "Threads that encode and decode large tensors, the calling one included; 0: by the cores that a rank has."},
    {"UNISONO_PAYLOAD_CHECKSUM", "1: checksums over payloads, not only over headers."},
    {"UNISONO_JOIN_TIMEOUT_MS", "Time for all ranks to join, in milliseconds [60000]."},
    {"UNISONO_TIMEOUT_MS", "Default deadline of an operation, in milliseconds [300000]."},
    {"UNISONO_LINK_TIMEOUT_MS",
     "How long a link between hosts may be without a connection before the peer is lost, in milliseconds [10000]."},
    {"UNISONO_RESEND_MEMORY_PER_LINK",
     "Bytes that are copied at most per TCP link, so that a new connection can send them again [16777216]."},
    {"UNISONO_RESEND_MEMORY", "The same, for all TCP links of a process [268435456]."},
    {"UNISONO_REFORM_TIMEOUT_MS", "How long re-forming a group waits for a silent process, in milliseconds [200]."},
    {"UNISONO_MIN_WORLD", "A group with fewer survivors than this ends when it is re-formed [1]."},
    {"UNISONO_REQUIRE_MAJORITY", "0: if the network splits a group, both parts continue, not only the majority."},
    {"UNISONO_RECORD",
     "How many operations each group's record keeps, at least 64 and rounded up to a power of two; 0: no record [256]."},
    {"UNISONO_RECORD_DIR",
     "A folder that records are written to, so that they outlive their process; else they are in memory."},
    {"UNISONO_LOG",
     "What the library writes of itself: warning (to standard error, the default), info (all events), or a file's path."},
    {"UNISONO_LISTEN_FD", "Descriptor of a listening socket that rank 0 inherits from its launcher, for the rendezvous."},
    {"NO_COLOR", "Set to anything: unisono launch writes no colours."},
};

static_assert(exit_code_usage == 2 && exit_code_launcher == 125);
constexpr ExitStatus exit_statuses[] = {
    {"0", "All is well."},
    {"1", "A measurement, a check or the service itself failed."},
    {"2", "The command line is wrong; standard error says how."},
    {"125", "launch: a host cannot be reached or was lost."},
    {"126, 127", "launch: the program cannot be executed, or was not found. lab: the same of unisono-lab."},
    {"128 + signal", "launch: the first rank that failed was killed by this signal."},
    {"any other", "launch: the exit code of the first rank that failed."},
};

constexpr std::string_view examples = R"(Four ranks on this machine:
  unisono launch -n 4 -- ./train --epochs 3
Two ranks on each of two hosts, through ssh:
  unisono launch --hosts a:2,b:2 -- ./train
How fast is it here, and is it right?
  unisono bench all-reduce -n 4
Why does the job hang?
  unisono explain
A thousand simulated clusters with faults, one per seed:
  unisono simulate all-reduce --peers 64 --seeds 0-999
A rendezvous that outlives rank 0:
  unisono rendezvous --listen :29500)";

}  // namespace

const Tool& unisono_tool() {
  static constexpr Tool tool{
      .name = "unisono",
      .title = "all-reduce for clusters that straggle, drop packets and change",
      .commands = command_table,
      .moved = moved_table,
      .first_steps = first_steps,
      .manual = {.description = "Unisono computes all-reduce and other collectives among processes, on one host or many. This "
                                "tool starts such processes, measures them, watches them, simulates them, and serves their "
                                "rendezvous. Standard output carries data, standard error everything else.",
                 .environment = "An empty variable counts as not set. An invalid value is an error that names the variable.",
                 .variables = variable_table,
                 .exit_statuses = exit_statuses,
                 .examples = examples,
                 .see_also =
                     ".BR unisono\\-lab (1),\n.BR ssh (1),\n.BR torchrun (1),\n.BR mpirun (1),\n.BR srun (1)\n.PP\nAmong the "
                     "installed documents: docs/reference/errors.md explains each error code, "
                     "docs/guides/troubleshooting.md what records tell, docs/guides/operations.md how processes find "
                     "each other.\n"}};
  return tool;
}

}  // namespace unisono::cli
