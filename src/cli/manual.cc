#include "cli/manual.h"

#include <fmt/format.h>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/verdict.h"
#include "cli/common/version.h"

namespace unisono::cli {
namespace {

constexpr Variable variable_table[] = {
    {"RANK, WORLD_SIZE",
     "The place of this process and how many there are, as torchrun and unisono launch set them. Open MPI's, MPICH's and "
     "Slurm's own variables are understood, too."},
    {"MASTER_ADDR, MASTER_PORT", "Where rank 0 gathers the others."},
    {"UNISONO_RANK, UNISONO_WORLD_SIZE", "The same as RANK and WORLD_SIZE, and believed before them."},
    {"UNISONO_RENDEZVOUS",
     "Where processes meet: tcp://host:port or file:///path. Believed before MASTER_ADDR and MASTER_PORT."},
    {"UNISONO_JOB", "The job's name: tells jobs apart that meet at one address."},
    {"UNISONO_JOIN_RUNNING", "1: wait to be taken in at the next re-forming of a running group."},
    {"UNISONO_TRANSPORT", "auto, shm, tcp or udp."},
    {"UNISONO_RATE_LIMIT_MBPS", "With udp: what a process sends at most, in Mbit/s; 0: as the network is found to carry."},
    {"UNISONO_DATAGRAM_CHECKSUM",
     "With udp: 1: a checksum in each datagram instead of an authentication, where both ends ask for it."},
    {"UNISONO_LOSE_PER_MILLE",
     "For trying out losses: the transport udp loses so many of 1000 datagrams that arrive, at random; 0 to 999."},
    {"UNISONO_INTERFACE", "Name or address of the network interface to listen on."},
    {"UNISONO_STREAMS_PER_LINK", "TCP connections per pair of hosts; 0: automatic."},
    {"UNISONO_TUNING", "A file that unisono tune wrote, by which schedules and connections are chosen."},
    {"UNISONO_CODEC", "How elements travel where a call does not say: plain, int8, int8/int4:group=64, ...; plain by default."},
    {"UNISONO_COMPUTE_THREADS",
     "Threads that encode and decode large tensors, the calling one included; 0: by the cores that a rank has."},
    {"UNISONO_PAYLOAD_CHECKSUM", "1: checksums over payloads, not only over headers."},
    {"UNISONO_JOIN_TIMEOUT_MS", "Time for everyone to come together, in milliseconds [60000]."},
    {"UNISONO_TIMEOUT_MS", "Default deadline of an operation, in milliseconds [300000]."},
    {"UNISONO_REFORM_TIMEOUT_MS", "How long a silent process is waited for when a group is re-formed, in milliseconds [200]."},
    {"UNISONO_MIN_WORLD", "A group with fewer survivors than this ends when it is re-formed [1]."},
    {"UNISONO_REQUIRE_MAJORITY", "1: only a majority of the old members goes on when a group is re-formed."},
    {"UNISONO_RECORD",
     "How many operations each group's record keeps, at least 64 and rounded up to a power of two; 0: no record [256]."},
    {"UNISONO_RECORD_DIR",
     "A folder that records are written to, so that they outlive their process; else they are in memory."},
    {"UNISONO_LISTEN_FD",
     "The number of a listening socket that rank 0 inherits from its launcher and serves the meeting point on."},
    {"NO_COLOR", "Set to anything: unisono launch writes no colours."},
};

struct ExitStatus {
  std::string code;
  std::string_view meaning;
};

// A line of roff that shows exactly this text: no letter of it is a request or an escape.
std::string plain(std::string_view text) {
  std::string out;
  if (text.starts_with('.')) out += "\\&";
  for (const char c : text) {
    switch (c) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;
      case '\'': out += "\\(aq"; break;
      case '`': out += "\\(ga"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      default: out += c;
    }
  }
  return out;
}

std::string bold(std::string_view text) { return "\\fB" + plain(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + plain(text) + "\\fR"; }

// One line of a table or of examples. What stands behind a gap explains it, and is filled to the reader's width below it.
std::string table_line(std::string_view line) {
  const auto gap = line.find("  ");
  if (gap == std::string_view::npos) return ".PP\n" + plain(line) + "\n";
  const auto meaning = line.find_first_not_of(' ', gap);
  return ".TP 4\n" + plain(line.substr(0, gap)) + "\n" + plain(line.substr(std::min(meaning, line.size()))) + "\n";
}

// Paragraphs of help text. Lines that begin with two spaces stay lines; the others are filled.
std::string paragraphs(std::string_view text) {
  std::string out;
  bool in_table = false, fresh = true;
  for (size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    at = end + 1;
    const bool of_table = line.starts_with("  ");
    if (in_table && !of_table) out += ".PD\n.RE\n";
    fresh = fresh || line.empty() || (in_table && !of_table);
    if (of_table) {
      if (!in_table) out += ".RS 2\n.PD 0\n";
      out += table_line(line.substr(2));
    } else if (!line.empty()) {
      out += (fresh ? ".PP\n" : "") + plain(line) + "\n";
      fresh = false;
    }
    in_table = of_table;
  }
  return out + (in_table ? ".PD\n.RE\n" : "");
}

std::string option_entry(const OptionSyntax& option) {
  std::string names;
  for (const auto& name : option.names)
    names += (names.empty() ? "" : ", ") + (option.positional() ? italic(name) : bold(name));
  if (!option.positional() && option.takes_value()) names += " " + italic(option.value);
  auto text = option.meaning;
  if (option.positional() && !option.choices.empty()) text += fmt::format(": {}", fmt::join(option.choices, " "));
  return ".TP\n" + names + "\n" + plain(text) + "\n";
}

std::string command_section(const CommandSyntax& command) {
  std::string text = ".SS " + bold("unisono " + command.name) + "\n";
  text += ".PP\n.RS 2\n.EX\n" + plain(command.usage) + "\n.EE\n.RE\n" + paragraphs(command.description);
  for (const auto& option : command.options) text += option_entry(option);
  return text + paragraphs(command.footer);
}

std::string environment_section() {
  std::string text =
      ".SH ENVIRONMENT\nA variable that is set to nothing counts as not set. A value that makes no sense is an error that "
      "names the variable.\n";
  for (const auto& variable : variable_table) text += ".TP\n" + bold(variable.name) + "\n" + plain(variable.meaning) + "\n";
  return text;
}

std::string exit_section() {
  const ExitStatus table[] = {
      {"0", "All is well."},
      {"1", "A measurement, a check or the service itself failed."},
      {fmt::format("{}", exit_code_usage), "The command line is wrong; standard error says how."},
      {fmt::format("{}", exit_code_launcher), "launch: a host cannot be reached or was lost."},
      {"126, 127", "launch: the program cannot be executed, or was not found."},
      {"128 + signal", "launch: the first rank that failed was killed by this signal."},
      {"any other", "launch: the exit code of the first rank that failed."},
  };
  std::string text = ".SH EXIT STATUS\n";
  for (const auto& status : table) text += ".TP\n" + bold(status.code) + "\n" + plain(status.meaning) + "\n";
  return text;
}

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
A meeting point that outlives rank 0:
  unisono rendezvous --listen :29500)";

}  // namespace

std::span<const Variable> variables() { return variable_table; }

std::string manual_page(std::span<const CommandSyntax> commands) {
  std::string text = fmt::format(".TH UNISONO 1 \"\" \"Unisono {}\" \"User Commands\"\n", version_text);
  text += ".nr HY 0\n.ad l\n.SH NAME\nunisono \\- all-reduce for clusters that straggle, drop packets and change\n";
  text += ".SH SYNOPSIS\n";
  for (const auto& command : commands) text += ".br\n" + plain(command.usage) + "\n";
  text += ".br\nunisono help [COMMAND]\n.br\nunisono \\-\\-version\n";
  text +=
      ".SH DESCRIPTION\nUnisono computes all-reduce and its relatives among processes, on one host or many. This tool starts "
      "such processes, "
      "measures them, watches them, simulates them, and serves the point where they meet. Standard output carries data, "
      "standard error everything else.\n";
  text += ".SH COMMANDS\n";
  for (const auto& command : commands) text += ".TP\n" + bold(command.name) + "\n" + plain(command.summary) + "\n";
  text += ".SH OPTIONS\n";
  for (const auto& command : commands) text += command_section(command);
  text += environment_section() + exit_section();
  text += ".SH EXAMPLES\n" + paragraphs(examples);
  text += ".SH SEE ALSO\n.BR ssh (1),\n.BR torchrun (1),\n.BR mpirun (1),\n.BR srun (1)\n";
  return text +
         ".PP\nAmong the installed documents: docs/reference/errors.md explains each error code, "
         "docs/guides/troubleshooting.md what records tell, docs/guides/operations.md how processes find each other.\n";
}

namespace {

const CommandLineText manual_text{.name = "unisono man",
                                  .usage = "unisono man",
                                  .description = "Prints the manual page of this tool, in roff.",
                                  .footer = R"(Examples:
  unisono man | man -l -

Exit code: 0, or 2 for a wrong command line.)"};

}  // namespace

CommandSyntax manual_syntax() { return syntax_of(manual_text, *make_app(manual_text)); }

int run_manual(const Arguments& arguments) {
  const auto app = make_app(manual_text);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  fmt::print("{}", manual_page(command_syntaxes()));
  return 0;
}

}  // namespace unisono::cli
