//! Rules between words: what contradicts itself is refused at its token.

use super::args::{Args, RetryAfter};
use super::model::{Case, Model};
use crate::errors::Errors;

pub(super) fn check(model: &Model, errors: &mut Errors) {
    if model.is_enum && model.args.is("transparent") {
        errors.at(
            &model.args.class,
            "`transparent` goes on a variant, whose only field then says what it is",
        );
    }
    if model.is_enum
        && let Some((key, _)) = &model.args.group
    {
        errors.at(key, "`group` goes on a variant: the variants of one type are not one group");
    }
    words(&model.args, errors);
    for case in &model.cases {
        if let Some((key, _)) = &case.args.krate {
            errors.at(key, "`crate` goes on the type, once");
        }
        words(&case.args, errors);
        fields(case, if model.is_enum { &case.args } else { &model.args }, errors);
    }
}

fn words(args: &Args, errors: &mut Errors) {
    let Some((key, _)) = &args.retry_after else { return };
    if args.is("permanent") {
        errors.at(key, "`retry_after` contradicts `permanent`, which is never retried");
    }
    if args.is("transparent") {
        errors.at(key, "`retry_after` contradicts `transparent`: the field inside says when");
    }
}

fn fields(case: &Case, args: &Args, errors: &mut Errors) {
    if args.is("transparent") && case.fields.len() != 1 {
        errors.at(
            &args.class,
            format!(
                "`transparent` needs exactly one field, which says what the error is; `{}` has {}",
                case.name,
                case.fields.len()
            ),
        );
    }
    if let Some((_, RetryAfter::Field { index, literal })) = &args.retry_after
        && (*index >= case.fields.len() || case.fields.iter().any(|field| field.ident.is_some()))
    {
        errors.at(
            literal,
            format!("`{}` has no field {index}; write a duration as text, e.g. \"10s\"", case.name),
        );
    }
}
