#include "cli/tool/tool.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common/job_outcome.h"
#include "cli/common/text.h"
#include "cli/common/version.h"
#include "cli/tool/completion.h"
#include "cli/tool/manual.h"

namespace unisono::cli {
namespace {

constexpr std::string_view completion_summary = "print a script with which bash, zsh or fish complete words of this tool";
constexpr std::string_view manual_summary = "print the manual page";

std::string overview(const Tool& tool) {
  auto text = fmt::format("{}: {}.\n\nUsage: {} COMMAND [OPTIONS]\n\nCommands:\n", tool.name, tool.title, tool.name);
  const auto add = [&](std::string_view name, std::string_view summary) {
    text += fmt::format("  {:<22} {}\n", name, summary);
  };
  for (const auto& command : tool.commands) {
    if (!command.summary.empty()) add(command.name, command.summary);
  }
  add("completion", completion_summary);
  add("man", manual_summary);
  add("help", fmt::format("this page, or '{} help COMMAND'", tool.name));
  add("--version", "the version");
  return text + std::string(tool.first_steps);
}

// Returns true if `words` begins with the name of a command. The name consists of one or two words.
bool begin_with(std::span<const std::string> words, std::string_view name) {
  return name == words[0] || (words.size() > 1 && name == words[0] + " " + words[1]);
}

size_t words_in(std::string_view name) { return name.find(' ') == std::string_view::npos ? 1 : 2; }

// Finds the command whose name is at the beginning of `words`. If both a command with one word and a command with two words
// match, the command with two words is found.
const Command* find_command(const Tool& tool, std::span<const std::string> words) {
  const Command* found = nullptr;
  for (const auto& command : tool.commands) {
    if (begin_with(words, command.name) && (found == nullptr || words_in(found->name) == 1)) found = &command;
  }
  return found;
}

int unknown_command(const Tool& tool, const std::string& name) {
  std::vector<std::string> names{"completion", "man", "help", "--help", "--version"};
  for (const auto& command : tool.commands) {
    if (!command.summary.empty()) names.emplace_back(command.name);
  }
  const auto meant = nearest_name(name, names);
  return usage_error(std::string(tool.name), fmt::format("there is no command '{}'.{}", name,
                                                         meant.empty() ? "" : fmt::format(" Did you mean '{}'?", meant)));
}

// Returns the commands of a group. For each command, the result has the second word of its name, and its summary.
std::vector<std::pair<std::string, std::string>> commands_in(const Tool& tool, const Command& group) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& command : tool.commands) {
    if (command.name.starts_with(fmt::format("{} ", group.name)))
      found.emplace_back(command.name.substr(group.name.size() + 1), command.summary);
  }
  return found;
}

std::vector<std::string> names_in(const Tool& tool, const Command& group) {
  std::vector<std::string> names;
  for (const auto& [name, summary] : commands_in(tool, group)) names.push_back(name);
  return names;
}

CommandLineText group_text(const Tool& tool, const Command& group) {
  const auto name = fmt::format("{} {}", tool.name, group.name);
  std::string footer = "Commands:\n";
  for (const auto& [word, summary] : commands_in(tool, group)) footer += fmt::format("  {:<13} {}\n", word, summary);
  footer +=
      fmt::format("\n'{} COMMAND --help' explains each.\n\nExit code: 2, or 0 for this page; see those of the commands.", name);
  return {.name = name,
          .usage = name + " COMMAND [OPTIONS]",
          .description = std::string(group.description),
          .footer = std::move(footer)};
}

std::unique_ptr<CLI::App> group_app(const CommandLineText& text, const std::vector<std::string>& names, std::string& word) {
  auto app = make_app(text);
  set_choices(*app->add_option("command", word, "what to do; its options come behind it")->type_name(""), names);
  return app;
}

CommandSyntax group_syntax(const Tool& tool, const Command& group) {
  std::string word;
  const auto text = group_text(tool, group);
  return syntax_of(text, *group_app(text, names_in(tool, group), word));
}

// Handles a command line that begins with the name of a group, but whose second word is not a command of this group.
int run_group(const Tool& tool, const Command& group, const Arguments& arguments) {
  std::string word;
  const auto text = group_text(tool, group);
  const auto names = names_in(tool, group);
  const auto app = group_app(text, names, word);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  if (word.empty()) return usage_error(text.name, fmt::format("a command is missing; there is {}", fmt::join(names, ", ")));
  if (std::find(names.begin(), names.end(), word) != names.end())
    return usage_error(text.name, fmt::format("{0} comes first: {1} {0} [OPTIONS]", word, text.name));
  const auto meant = nearest_name(word, names);
  return usage_error(text.name, fmt::format("'{}' is none of {}{}", word, fmt::join(names, ", "),
                                            meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant)));
}

int run_words(const Tool& tool, std::span<const std::string> words, bool help) {
  const auto behind = [&](size_t count) {
    return help ? Arguments{"--help"} : Arguments(words.begin() + static_cast<std::ptrdiff_t>(count), words.end());
  };
  for (const auto& [was, now] : tool.moved) {
    if (begin_with(words, was)) return usage_error(std::string(tool.name), fmt::format("'{}' has moved: {}", was, now));
  }
  if (words[0] == "completion") return run_completion(tool, behind(1));
  if (words[0] == "man") return run_manual(tool, behind(1));
  const auto* command = find_command(tool, words);
  if (command == nullptr) return unknown_command(tool, words[0]);
  const auto arguments = behind(words_in(command->name));
  return command->run == nullptr ? run_group(tool, *command, arguments) : command->run(arguments);
}

}  // namespace

std::vector<CommandSyntax> command_syntaxes(const Tool& tool) {
  std::vector<CommandSyntax> all;
  const auto add = [&](CommandSyntax syntax, std::string_view summary) {
    all.push_back(std::move(syntax));
    all.back().summary = summary;
  };
  for (const auto& command : tool.commands) {
    if (command.summary.empty()) continue;
    add(command.run == nullptr ? group_syntax(tool, command) : command.syntax(), command.summary);
  }
  add(completion_syntax(tool), completion_summary);
  add(manual_syntax(tool), manual_summary);
  return all;
}

int run_tool(const Tool& tool, const Arguments& arguments) {
  if (arguments.empty()) {
    fmt::print(stderr, "{}", overview(tool));
    return exit_code_usage;
  }
  const auto& name = arguments.front();
  if (name == "--version" || name == "-V") {
    fmt::print("{} {} ({})\n", tool.name, version_text, commit_text());
    return 0;
  }
  const bool help = name == "--help" || name == "-h" || name == "help";
  if (help && arguments.size() < 2) {
    fmt::print("{}", overview(tool));
    return 0;
  }
  return run_words(tool, std::span(arguments).subspan(help ? 1 : 0), help);
}

}  // namespace unisono::cli
