#include <fmt/format.h>

#include <algorithm>

#include "cli/common/text.h"
#include "cli/tool/completion.h"

namespace unisono::cli {
namespace {

// Escapes the characters that have a special meaning for _arguments and _describe.
std::string escape(std::string_view text, std::string_view special) {
  std::string escaped;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// Returns the part of a specification that is about the value: its name and its completions, such as ":COUNT:(1 2 3)".
std::string value_of(const OptionSyntax& option) {
  if (!option.takes_value()) return "";
  std::string action = " ";  // with this action, nothing is completed
  if (!option.choices.empty()) action = fmt::format("({})", fmt::join(option.choices, " "));
  else if (option.takes_file()) action = "_files";
  const auto& label = option.value.empty() ? option.names.front() : option.value;
  return fmt::format(":{}:{}", escape(label, ":\\"), action);
}

// Returns the specification of an option for _arguments. For a positional argument, `position` is its number ("1"). "*" stands
// for all remaining words.
std::string specification(const OptionSyntax& option, const std::string& position) {
  if (option.positional()) return "      " + shell_quote(position + value_of(option)) + " \\\n";
  // Writes one line for each name of the option. After one of the names, zsh offers none of them again, unless the option may
  // be repeated.
  std::string lines;
  const bool repeated = option.value.find('=') != std::string::npos;
  for (const auto& name : option.names) {
    const auto others = repeated ? std::string("*") : fmt::format("({})", fmt::join(option.names, " "));
    const auto mark = !option.takes_value() ? "" : name.starts_with("--") ? "=" : "+";
    lines += "      " +
             shell_quote(fmt::format("{}{}{}[{}]{}", others, name, mark, escape(option.meaning, "[]\\"), value_of(option))) +
             " \\\n";
  }
  return lines;
}

}  // namespace

std::string zsh_completion(std::string_view tool, std::span<const CommandSyntax> commands) {
  std::string list, cases, subcommands;
  for (const auto& command : commands) {
    if (command.is_subcommand())
      subcommands += fmt::format(
          "  if (( CURRENT > 3 )) && [[ \"$words[2] $words[3]\" == '{0}' ]]; then command='{0}'; shift words; (( CURRENT-- )); "
          "fi\n",
          command.name);
    else list += "    " + shell_quote(escape(command.name, ":\\") + ":" + escape(command.summary, ":\\")) + "\n";
    cases += fmt::format("    '{}') _arguments -S \\\n", command.name);
    const auto positionals = std::count_if(command.options.begin(), command.options.end(),
                                           [](const OptionSyntax& option) { return option.positional(); });
    size_t position = 0;
    for (const auto& option : command.options)
      cases += specification(option, positionals == 1 ? "*" : std::to_string(position += option.positional()));
    if (command.runs_program) cases += "      '(-):program:_command_names -e' '*::arguments:_normal' \\\n";
    cases += "      && return 0 ;;\n";
  }
  return fmt::format(R"(#compdef {tool}
# zsh completion for {tool}, printed by '{tool} completion zsh'.

{function}() {{
  local -a commands=(
{list}    'help:explain a command'
  )
  if (( CURRENT == 2 )); then
    _describe -t commands command commands
    [[ $PREFIX == -* ]] && compadd -- --help --version
    return
  fi
  local command=$words[2]
{subcommands}  if [[ $command == help ]]; then
    _describe -t commands command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  case $command in
{cases}  esac
  return 1
}}

if [[ $funcstack[1] == {function} ]]; then
  {function} "$@"
else
  compdef {function} {tool}
fi
)",
                     fmt::arg("tool", tool), fmt::arg("function", completion_function(tool)), fmt::arg("list", list),
                     fmt::arg("subcommands", subcommands), fmt::arg("cases", cases));
}

}  // namespace unisono::cli
