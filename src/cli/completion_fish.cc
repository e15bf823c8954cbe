#include <fmt/format.h>

#include "cli/common/text.h"
#include "cli/completion.h"

namespace unisono::cli {
namespace {

constexpr std::string_view head = R"(# fish completion for unisono, printed by 'unisono completion fish'.

# Is $argv the command, one word or two, and no program begun behind its options?
function __unisono_command_is
  set -l words (commandline -opc)
  set -l command "$words[2]"
  contains -- "$words[2] $words[3]" $__unisono_subcommands; and set command "$words[2] $words[3]"
  test "$command" = "$argv"; and not contains -- -- $words
end

function __unisono_has_no_command
  test (count (commandline -opc)) -eq 1
end

# Behind --: the words of another command.
function __unisono_program_of
  set -l words (commandline -opc)
  test "$words[2]" = "$argv[1]"; and contains -- -- $words
end

function __unisono_complete_program
  set -l words (commandline -opc)
  set -l index (contains -i -- -- $words)
  set -l program $words[(math $index + 1)..-1] (commandline -ct)
  complete -C (string join ' ' -- (string escape -- $program[1..-2]) $program[-1])
end

complete -c unisono -f
)";

// Fish reads \ and ' as escapes inside '…'.
std::string quote(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\\' || c == '\'') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string option_line(const CommandSyntax& command, const OptionSyntax& option) {
  auto line = fmt::format("complete -c unisono -n '__unisono_command_is {}'", command.name);
  if (!option.positional()) {
    for (const auto& name : option.names) line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  } else if (option.choices.empty()) {
    return "";
  }
  if (option.takes_file()) line += " -r -F";
  else if (option.takes_value() && !option.positional()) line += " -x";
  if (!option.choices.empty()) line += fmt::format(" -a '{}'", fmt::join(option.choices, " "));
  if (!option.positional()) line += " -d " + quote(option.meaning);
  return line + "\n";
}

}  // namespace

std::string fish_completion(std::span<const CommandSyntax> commands) {
  std::string text(head);
  text += "set -g __unisono_subcommands";
  for (const auto& command : commands) text += command.is_subcommand() ? fmt::format(" '{}'", command.name) : "";
  text += "\n";
  for (const auto& command : commands) {
    if (command.is_subcommand()) continue;
    text += fmt::format("complete -c unisono -n __unisono_has_no_command -a {} -d {}\n", command.name, quote(command.summary));
    text +=
        fmt::format("complete -c unisono -n '__unisono_command_is help' -a {} -d {}\n", command.name, quote(command.summary));
  }
  text += "complete -c unisono -n __unisono_has_no_command -a help -d 'explain a command'\n";
  text += "complete -c unisono -n __unisono_has_no_command -l version -d 'the version'\n";
  for (const auto& command : commands) {
    for (const auto& option : command.options) text += option_line(command, option);
    if (!command.runs_program) continue;
    text += fmt::format("complete -c unisono -n '__unisono_command_is {}' -F -a '(__fish_complete_command)'\n", command.name);
    text +=
        fmt::format("complete -c unisono -n '__unisono_program_of {}' -F -a '(__unisono_complete_program)'\n", command.name);
  }
  return text;
}

}  // namespace unisono::cli
