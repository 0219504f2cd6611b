//! Rules for requests, as `lib/rate_limits.cjs` passes them: their functions are called in JavaScript, before a request is
//! judged.

use earrrl::Cost;
use earrrl_bindings::{Answers, KeyPart, Plan, RequestRule, missing, status};
use earrrl_tower::Missing;
use napi::ValueType;
use napi::bindgen_prelude::Unknown;

use crate::input::{self, Key};
use crate::value::{self, Options, failed, invalid, wrong};

/// The options of a rule, as users and `lib/rate_limits.cjs` know them.
pub(crate) const OPTIONS: [&str; 13] = [
    "name",
    "limit",
    "key",
    "paths",
    "missing",
    "cost",
    "costAfter",
    "settled",
    "plans",
    "limitBy",
    "action",
    "maxDelay",
    "maxCost",
];

/// Reads a rule.
///
/// # Errors
/// Returns an error with the name of the wrong option.
pub(crate) fn read_rule(options: &Options<'_>) -> napi::Result<RequestRule> {
    let limits = input::rule_options(options)?;
    let of_text = |text: String| limits.rule(&text).map_err(failed);
    let name = options.required("name", value::text)?;
    let limit = of_text(options.required("limit", value::rule)?)?;
    let mut rule = RequestRule::new(name, limit).map_err(failed)?;
    rule.key = options.required("key", |name, key| value::list(name, key, key_part))?;
    if rule.key.is_empty() {
        return Err(invalid("key: an empty list; expected at least one part"));
    }
    let paths = options.get("paths", |name, paths| value::list(name, paths, value::text))?;
    for path in paths.into_iter().flatten() {
        let path = path.parse().map_err(|why| invalid(format!("paths: {why}")));
        rule.paths.push(path?);
    }
    rule.missing = options
        .get("missing", read_missing)?
        .unwrap_or(Missing::Shared);
    rule.cost = options.get("cost", input::cost)?.unwrap_or(Cost::ONE);
    rule.has_cost_after = options.required("costAfter", value::flag)?;
    rule.is_settled = options.get("settled", value::flag)? == Some(true);
    rule.has_limit_by = options.required("limitBy", value::flag)?;
    let plans = options.required("plans", |name, plans| value::list(name, plans, plan))?;
    for (name, limit) in plans {
        let rule_of_plan = of_text(limit)?;
        rule.plans.push(Plan {
            name,
            rule: rule_of_plan,
        });
    }
    Ok(rule)
}

/// Returns a part of a key, which is null if a function returns it.
fn key_part(name: &str, part: Unknown<'_>) -> napi::Result<KeyPart> {
    let text = value::optional(name, part, value::text)?;
    earrrl_bindings::key_part(text.as_deref()).map_err(failed)
}

/// Returns the name and the limit of a plan.
fn plan(name: &str, plan: Unknown<'_>) -> napi::Result<(String, String)> {
    let plan = Options::new(name, plan)?;
    Ok((
        plan.required("name", value::text)?,
        plan.required("limit", value::rule)?,
    ))
}

fn read_missing(name: &str, value: Unknown<'_>) -> napi::Result<Missing> {
    match value.get_type()? {
        ValueType::Number => {
            let code = input::whole(400..=999)(name, value)?;
            Ok(Missing::Deny(status(name, code as u16).map_err(failed)?))
        }
        ValueType::String => {
            let text = value::text(name, value)?;
            missing(&text).map_err(failed)
        }
        _ => {
            let expected = "\"share\", \"skip\", or a status from 400 to 999";
            Err(wrong(name, value, expected))
        }
    }
}

/// Reads the results of the functions of a rule.
///
/// # Errors
/// Returns an error for a key or a cost that is none.
pub(crate) fn read_answers(answers: Unknown<'_>) -> napi::Result<Answers> {
    let answers = Options::new("answers", answers)?;
    let place = input::whole(0..=u32::MAX);
    Ok(Answers {
        is_exempt: answers.required("exempt", value::flag)?,
        keys: answers.required("keys", |name, keys| value::list(name, keys, answered_key))?,
        plan: answers.get("plan", place)?.map(|place| place as usize),
        limit: answers.get("limitBy", value::text)?,
        cost: answers.get("cost", input::cost)?,
    })
}

/// Returns the key that a function has returned, if there is one.
fn answered_key(_: &str, key: Unknown<'_>) -> napi::Result<Option<Vec<u8>>> {
    let bytes = |_: &str, key| Ok(input::bytes(&Key::read(key)?).to_vec());
    value::optional("key", key, bytes)
}
