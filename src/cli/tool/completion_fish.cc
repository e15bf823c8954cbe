#include <fmt/format.h>

#include <algorithm>

#include "cli/common/text.h"
#include "cli/tool/completion.h"

namespace unisono::cli {
namespace {

// @TOOL is replaced by the name of the tool, and @FUNCTION by the prefix that the names of its shell functions have.
constexpr std::string_view head = R"(# fish completion for @TOOL, printed by '@TOOL completion fish'.

# Is $argv the command, one word or two, and no program begun behind its options?
function @FUNCTION_command_is
  set -l words (commandline -opc)
  set -l command "$words[2]"
  contains -- "$words[2] $words[3]" $@FUNCTION_subcommands; and set command "$words[2] $words[3]"
  test "$command" = "$argv"; and not contains -- -- $words
end

function @FUNCTION_has_no_command
  test (count (commandline -opc)) -eq 1
end

# Behind --: the words of another command.
function @FUNCTION_program_of
  set -l words (commandline -opc)
  test "$words[2]" = "$argv[1]"; and contains -- -- $words
end

function @FUNCTION_complete_program
  set -l words (commandline -opc)
  set -l index (contains -i -- -- $words)
  set -l program $words[(math $index + 1)..-1] (commandline -ct)
  complete -C (string join ' ' -- (string escape -- $program[1..-2]) $program[-1])
end

complete -c @TOOL -f
)";

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto found = std::min(text.find(from, at), text.size());
    out += text.substr(at, found - at);
    if (found < text.size()) out += to;
    at = found + from.size();
  }
  return out;
}

// Quotes a word for fish. Inside '…', fish reads \ and ' as escapes.
std::string quote(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\\' || c == '\'') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

// Builds the completion script of one tool. The script defines shell functions, which the `complete` lines use as conditions.
class Script {
 public:
  explicit Script(std::string_view tool)
      : tool_(tool),
        function_("_" + completion_function(tool)),
        text_(replaced(replaced(head, "@TOOL", tool), "@FUNCTION", function_)) {}

  void define(std::string_view variable, const std::string& values) {
    text_ += fmt::format("set -g {}_{}{}\n", function_, variable, values);
  }

  void complete(std::string_view condition, std::string_view argument, const std::string& what) {
    const auto call = argument.empty() ? fmt::format("{}_{}", function_, condition)
                                       : fmt::format("'{}_{} {}'", function_, condition, argument);
    text_ += fmt::format("complete -c {} -n {} {}\n", tool_, call, what);
  }

  void complete_program(const CommandSyntax& command) {
    complete("command_is", command.name, "-F -a '(__fish_complete_command)'");
    complete("program_of", command.name, fmt::format("-F -a '({}_complete_program)'", function_));
  }

  const std::string& text() const { return text_; }

 private:
  std::string_view tool_;
  std::string function_;
  std::string text_;
};

// Returns the arguments of `complete` for an option. The text is empty if there is nothing to complete.
std::string option_words(const OptionSyntax& option) {
  std::string words;
  if (!option.positional()) {
    for (const auto& name : option.names) words += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  } else if (option.choices.empty()) {
    return "";
  }
  if (option.takes_file()) words += " -r -F";
  else if (option.takes_value() && !option.positional()) words += " -x";
  if (!option.choices.empty()) words += fmt::format(" -a '{}'", fmt::join(option.choices, " "));
  if (!option.positional()) words += " -d " + quote(option.meaning);
  return words.substr(1);
}

}  // namespace

std::string fish_completion(std::string_view tool, std::span<const CommandSyntax> commands) {
  Script script(tool);
  std::string subcommands;
  for (const auto& command : commands) subcommands += command.is_subcommand() ? fmt::format(" '{}'", command.name) : "";
  script.define("subcommands", subcommands);
  for (const auto& command : commands) {
    if (command.is_subcommand()) continue;
    const auto word = fmt::format("-a {} -d {}", command.name, quote(command.summary));
    script.complete("has_no_command", "", word);
    script.complete("command_is", "help", word);
  }
  script.complete("has_no_command", "", "-a help -d 'explain a command'");
  script.complete("has_no_command", "", "-l version -d 'the version'");
  for (const auto& command : commands) {
    for (const auto& option : command.options) {
      if (const auto words = option_words(option); !words.empty()) script.complete("command_is", command.name, words);
    }
    if (command.runs_program) script.complete_program(command);
  }
  return script.text();
}

}  // namespace unisono::cli
