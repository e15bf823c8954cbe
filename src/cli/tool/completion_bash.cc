#include <fmt/format.h>

#include "cli/tool/completion.h"

namespace unisono::cli {
namespace {

// $word is the word that the user is typing, and $before is the word before it. Bash splits words at '=', so --name=value
// arrives as three words. The scripts of all tools define these helpers in the same way.
constexpr std::string_view helpers = R"(

_unisono_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$@" -- "$word")
}

# The number of the word at which the program behind the options begins; 0 if none has begun before the current word.
# Arguments: the options that take a value.
_unisono_program_index() {
  local index=2 option
  while [ "$index" -lt "$COMP_CWORD" ]; do
    case ${COMP_WORDS[index]} in
      --) echo $((index + 1)); return ;;
      -*)
        for option in "$@"; do
          if [ "${COMP_WORDS[index]}" = "$option" ]; then index=$((index + 1)); break; fi
        done
        if [ "${COMP_WORDS[index]}" = = ] || [ "${COMP_WORDS[index + 1]}" = = ]; then index=$((index + 2)); fi ;;
      *) echo "$index"; return ;;
    esac
    index=$((index + 1))
  done
  echo 0
}

_unisono_program() {
  if [ "$COMP_CWORD" -eq "$1" ]; then _unisono_files -c -f
  elif declare -F _command_offset >/dev/null; then _command_offset "$1"
  else _unisono_files -f
  fi
}
)";

constexpr std::string_view main_head = R"(() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words='' index
  COMPREPLY=()
  if [ "$word" = = ]; then word=''
  elif [ "$before" = = ]; then before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
)";

std::string names_of(const CommandSyntax& command, bool with_value_only) {
  std::string names;
  for (const auto& option : command.options) {
    if (option.positional() || (with_value_only && !option.takes_value())) continue;
    for (const auto& name : option.names) names += (names.empty() ? "" : " ") + name;
  }
  return names;
}

// If the cursor is after the second word, this selects a command whose name has two words, such as "drop-compute plan".
std::string subcommand_case(const CommandSyntax& command) {
  return fmt::format("  if [ \"$COMP_CWORD\" -gt 2 ] && [ \"$command ${{COMP_WORDS[2]}}\" = '{0}' ]; then command='{0}'; fi\n",
                     command.name);
}

// Returns shell patterns that match the names of an option: 'launch --transport' | 'launch -t'.
std::string patterns(const CommandSyntax& command, const OptionSyntax& option) {
  std::string text;
  for (const auto& name : option.names) text += fmt::format("{}'{} {}'", text.empty() ? "" : " | ", command.name, name);
  return text;
}

std::string value_cases(const CommandSyntax& command) {
  std::string text;
  for (const auto& option : command.options) {
    if (option.positional() || !option.takes_value()) continue;
    text += fmt::format("    {}) ", patterns(command, option));
    if (!option.choices.empty()) text += fmt::format("words='{}' ;;\n", fmt::join(option.choices, " "));
    else if (option.takes_file()) text += "_unisono_files -f; return ;;\n";
    else text += "return ;;\n";
  }
  return text;
}

// Words without a dash are completed with the values of the first positional argument that has a list of values. If a
// positional argument is a file, this holds only for the word after the command, and all other words are completed with file
// names.
std::string positional_branches(const CommandSyntax& command) {
  std::string words;
  bool files = false;
  for (const auto& option : command.options) {
    if (!option.positional()) continue;
    if (words.empty()) words = fmt::format("{}", fmt::join(option.choices, " "));
    files = files || option.takes_file();
  }
  if (!files) return fmt::format("else words='{}'; fi", words);
  const auto first = words.empty() ? "" : fmt::format("elif [ \"$COMP_CWORD\" -eq 2 ]; then words='{}'; ", words);
  return first + "else _unisono_files -f; return; fi";
}

std::string program_case(const CommandSyntax& command) {
  return fmt::format(R"(    {})
      index=$(_unisono_program_index {})
      if [ "$index" -gt 0 ]; then _unisono_program "$index"; return; fi ;;
)",
                     command.name, names_of(command, true));
}

}  // namespace

std::string bash_completion(std::string_view tool, std::span<const CommandSyntax> commands) {
  std::string names, values, options, programs, subcommands;
  for (const auto& command : commands) {
    if (command.is_subcommand()) subcommands += subcommand_case(command);
    else names += command.name + " ";
    values += value_cases(command);
    if (command.runs_program) programs += program_case(command);
    options +=
        fmt::format("      '{}') if [[ $word == -* ]]; then words='{}'; {} ;;\n", command.name, names_of(command, false),
                    command.runs_program ? "else _unisono_program \"$COMP_CWORD\"; return; fi" : positional_branches(command));
  }
  const auto function = completion_function(tool);
  auto text = fmt::format("# bash completion for {0}, printed by '{0} completion bash'.\n{1}\n{2}{3}", tool, helpers, function,
                          main_head);
  text += subcommands;
  text += fmt::format("  if [ \"$COMP_CWORD\" -eq 1 ]; then words='{}help --help --version'; command=''\n", names);
  text += fmt::format("  elif [ \"$command\" = help ]; then words='{}'; command=''\n  fi\n", names);
  if (!programs.empty()) text += "  case $command in\n" + programs + "  esac\n";
  text += "  case \"$command $before\" in\n" + values + "  esac\n";
  text += "  if [ -z \"$words\" ]; then\n    case $command in\n" + options + "    esac\n  fi\n";
  return text + "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n\n" +
         fmt::format("complete -F {} {}\n", function, tool);
}

}  // namespace unisono::cli
