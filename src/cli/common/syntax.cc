#include "cli/common/syntax.h"

#include <fmt/format.h>

#include <algorithm>

namespace unisono::cli {
namespace {

// CLI::Option keeps a list of values only together with a check, but our parsers give better error messages than the check
// CLI::IsMember. So the list of values is stored as the name of a validator that accepts everything.
constexpr std::string_view choices_mark = "choices ";

std::vector<std::string> choices_of(CLI::Option& option) {
  std::string text;
  try {
    text = option.get_validator(0)->get_name();
  } catch (const CLI::OptionNotFound&) {
    return {};
  }
  if (!text.starts_with(choices_mark)) return {};
  std::vector<std::string> choices;
  for (size_t at = choices_mark.size(); at < text.size();) {
    const auto end = std::min(text.find(' ', at), text.size());
    choices.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return choices;
}

}  // namespace

void set_choices(CLI::Option& option, const std::vector<std::string>& choices) {
  option.check(CLI::Validator([](std::string&) { return std::string(); }, "",
                              fmt::format("{}{}", choices_mark, fmt::join(choices, " "))));
}

std::vector<OptionSyntax> options_of(CLI::App& app) {
  std::vector<OptionSyntax> all;
  for (auto* option : app.get_options([](CLI::Option*) { return true; })) {
    OptionSyntax syntax;
    for (const auto& name : option->get_snames()) syntax.names.push_back("-" + name);
    for (const auto& name : option->get_lnames()) syntax.names.push_back("--" + name);
    if (syntax.names.empty()) syntax.names.push_back(option->get_name(true));
    if (option->get_type_size() != 0) syntax.value = option->get_type_name();
    syntax.meaning = option->get_description();
    syntax.choices = choices_of(*option);
    all.push_back(std::move(syntax));
  }
  // CLI::App adds --help first; it should be last.
  const auto help = std::find_if(all.begin(), all.end(), [](const OptionSyntax& o) { return o.names.back() == "--help"; });
  if (help != all.end()) std::rotate(help, help + 1, all.end());
  return all;
}

}  // namespace unisono::cli
