//! A form's policy: what its signer allows the form to contain (“Creating a POST Policy”, S3 API reference).

use serde_json::Value;

use super::parts::Fields;
use crate::refusal::Refusal;

/// Fields that a policy need not mention.
const FREE: [&str; 6] = ["awsaccesskeyid", "file", "policy", "signature", "submit", "x-amz-signature"];
/// So do fields whose names begin so. Checksums belong to the bytes, which a policy cannot know.
const FREE_PREFIXES: [&str; 2] = ["x-ignore-", "x-amz-checksum-"];

/// A parsed policy.
#[derive(Debug)]
pub(super) struct Policy {
    expiration_unix: u64,
    conditions: Vec<Condition>,
}

#[derive(Debug, PartialEq, Eq)]
enum Condition {
    Equals { field: String, value: String },
    StartsWith { field: String, prefix: String },
    Size { least: u64, most: u64 },
}

fn invalid(reason: &str) -> Refusal {
    Refusal::bad("InvalidPolicyDocument", format!("Invalid Policy: {reason}."))
}

fn outside(reason: &str) -> Refusal {
    Refusal::denied("AccessDenied", format!("Invalid according to Policy: {reason}."))
}

/// Returns whether a field needs no condition.
fn is_free(name: &str) -> bool {
    FREE.contains(&name) || FREE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Parses `2030-01-01T00:00:00.000Z`; the fraction may lack.
fn parse_date(text: &str) -> Option<s3s::dto::Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let is_form = |text: &str, separator: char| {
        text.len() >= 8 && text.chars().all(|c| c.is_ascii_digit() || c == separator || c == '.')
    };
    if date.len() != 10 || !is_form(date, '-') || !is_form(time, ':') {
        return None;
    }
    s3s::dto::Timestamp::parse(s3s::dto::TimestampFormat::DateTime, text).ok()
}

impl Policy {
    /// Parses a policy as a form carries it: JSON in base64.
    ///
    /// # Errors
    /// InvalidPolicyDocument with the fault.
    pub fn parse(encoded: &str) -> Result<Self, Refusal> {
        let encoded: String = encoded.split_ascii_whitespace().collect();
        let json = base64_simd::STANDARD.decode_to_vec(encoded).map_err(|_| invalid("it is not base64"))?;
        let json: Value = serde_json::from_slice(&json).map_err(|_| invalid("it is not JSON"))?;
        let expiration = json.get("expiration").and_then(Value::as_str);
        let expiration = expiration.ok_or_else(|| invalid("it has no expiration"))?;
        let expiration = parse_date(expiration)
            .ok_or_else(|| invalid("its expiration is not a date in ISO 8601 and UTC"))?;
        let conditions = json.get("conditions").and_then(Value::as_array);
        let conditions = conditions.ok_or_else(|| invalid("it has no list of conditions"))?;
        let mut policy =
            Self { expiration_unix: crate::translate::unix_seconds(&expiration), conditions: Vec::new() };
        for condition in conditions {
            policy.add(condition).ok_or_else(|| invalid(&format!("it has a condition {condition}")))?;
        }
        Ok(policy)
    }

    /// Adds `{"field": "value"}` or `[operator, …]`; `None` for anything else.
    fn add(&mut self, condition: &Value) -> Option<()> {
        if let Value::Object(pairs) = condition {
            if pairs.is_empty() {
                return None;
            }
            for (field, value) in pairs {
                let (field, value) = (field.to_ascii_lowercase(), value.as_str()?.to_owned());
                self.conditions.push(Condition::Equals { field, value });
            }
            return Some(());
        }
        let [operator, first, second] = condition.as_array()?.as_slice() else { return None };
        let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let field = || Some(first.as_str()?.strip_prefix('$')?.to_ascii_lowercase());
        let text = || second.as_str().map(str::to_owned);
        self.conditions.push(match operator.as_str()?.to_ascii_lowercase().as_str() {
            "eq" => Condition::Equals { field: field()?, value: text()? },
            "starts-with" => Condition::StartsWith { field: field()?, prefix: text()? },
            "content-length-range" => Condition::Size { least: number(first)?, most: number(second)? },
            _ => return None,
        });
        Some(())
    }

    /// Checks that the policy is in force at `now` (Unix seconds).
    ///
    /// # Errors
    /// AccessDenied if it has expired.
    pub fn check_expiration(&self, now: u64) -> Result<(), Refusal> {
        match now < self.expiration_unix {
            true => Ok(()),
            false => Err(outside("Policy expired")),
        }
    }

    /// Checks a form for `bucket`. Returns the minimum and the maximum size of its file in bytes.
    ///
    /// # Errors
    /// AccessDenied if a condition does not hold, or a field is not in the policy.
    pub fn check(&self, fields: &Fields, bucket: &str) -> Result<(u64, u64), Refusal> {
        if fields.get("bucket").is_some_and(|named| named != bucket) {
            return Err(outside("the form's bucket is not that of its address"));
        }
        // Without it the form would be good for every bucket of its signer.
        if !self.mentions("bucket") {
            return Err(outside("Policy Condition failed: it has no condition on the bucket"));
        }
        let mut sizes = (0, u64::MAX);
        for condition in &self.conditions {
            match condition {
                Condition::Size { least, most } => sizes = (sizes.0.max(*least), sizes.1.min(*most)),
                Condition::Equals { field, value } => {
                    if value_of(fields, bucket, field) != value {
                        return Err(outside(&format!(
                            "Policy Condition failed: [\"eq\", \"${field}\", \"{value}\"]"
                        )));
                    }
                }
                Condition::StartsWith { field, prefix } => {
                    if !value_of(fields, bucket, field).starts_with(prefix.as_str()) {
                        let condition = format!("[\"starts-with\", \"${field}\", \"{prefix}\"]");
                        return Err(outside(&format!("Policy Condition failed: {condition}")));
                    }
                }
            }
        }
        for (name, _) in fields.iter().filter(|(name, _)| !is_free(name)) {
            if !self.mentions(name) {
                return Err(outside(&format!("Extra input fields: {name}")));
            }
            // Otherwise one value would be checked and another be used.
            if fields.is_repeated(name) {
                return Err(Refusal::bad("InvalidArgument", format!("The form has several fields {name}.")));
            }
        }
        Ok(sizes)
    }

    fn mentions(&self, name: &str) -> bool {
        self.conditions.iter().any(|condition| match condition {
            Condition::Equals { field, .. } | Condition::StartsWith { field, .. } => field == name,
            Condition::Size { .. } => false,
        })
    }
}

/// Returns the value that a condition applies to; an absent field is empty. The bucket is that of the address.
fn value_of<'a>(fields: &'a Fields, bucket: &'a str, field: &str) -> &'a str {
    match field {
        "bucket" => bucket,
        field => fields.get(field).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(json: &str) -> Result<Policy, Refusal> {
        Policy::parse(&base64_simd::STANDARD.encode_to_string(json))
    }

    fn check(conditions: &str, fields: &[(&str, &str)]) -> Result<(u64, u64), (&'static str, String)> {
        let json = format!(r#"{{"expiration":"2030-01-01T00:00:00Z","conditions":{conditions}}}"#);
        let checked = policy(&json).unwrap().check(&Fields::from(fields), "b");
        checked.map_err(|refusal| (refusal.code, refusal.message))
    }

    #[test]
    fn conditions_are_equal_prefix_or_size_and_cover_every_field() {
        let conditions = r#"[{"bucket":"b"},["starts-with","$Key","dir/"],["eq","$acl","private"],
                            ["content-length-range",3,"10"],["content-length-range",5,20]]"#;
        let good = [
            ("key", "dir/k"),
            ("acl", "private"),
            ("x-ignore-me", "1"),
            ("x-amz-checksum-sha256", "x"),
            ("policy", "p"),
        ];
        assert_eq!(check(conditions, &good), Ok((5, 10)));
        for (fields, reason) in [
            (&[("key", "elsewhere"), ("acl", "private")][..], "starts-with"),
            (&[("key", "dir/k"), ("acl", "public-read")], "eq"),
            (&[("key", "dir/k")], "eq"),
            (
                &[("key", "dir/k"), ("acl", "private"), ("x-amz-meta-a", "1")],
                "Extra input fields: x-amz-meta-a",
            ),
            (&[("key", "dir/k"), ("acl", "private"), ("bucket", "c")], "bucket"),
        ] {
            let (code, message) = check(conditions, fields).unwrap_err();
            assert_eq!(code, "AccessDenied");
            assert!(message.contains(reason), "{message}");
        }
        let twice = [("key", "dir/k"), ("acl", "private"), ("key", "other")];
        assert_eq!(check(conditions, &twice).unwrap_err().0, "InvalidArgument");
        assert_eq!(check(r#"[{"bucket":"other"}]"#, &[]).unwrap_err().0, "AccessDenied");
    }

    #[test]
    fn policies_expire() {
        let policy = policy(r#"{"expiration":"2020-01-01T00:00:00.000Z","conditions":[]}"#).unwrap();
        assert!(policy.check_expiration(1_577_836_799).is_ok());
        assert_eq!(policy.check_expiration(1_577_836_800).unwrap_err().code, "AccessDenied");
    }

    #[test]
    fn what_is_no_policy_is_refused() {
        for json in [
            "",
            "[]",
            r#"{"conditions":[]}"#,
            r#"{"expiration":"tomorrow","conditions":[]}"#,
            r#"{"expiration":"2030-01-01 00:00:00Z","conditions":[]}"#,
            r#"{"expiration":"2030-01-01 00:00:00+00:00","conditions":[]}"#,
            r#"{"expiration":"2030-01-01T00:00:00+00:00","conditions":[]}"#,
            r#"{"expiration":"2030-01-01T00:00:00","conditions":[]}"#,
            r#"{"expiration":"2030-01-01T00:00:00Z","conditions":[{}]}"#,
            r#"{"expiration":"2030-01-01T00:00:00Z"}"#,
            r#"{"expiration":"2030-01-01T00:00:00Z","conditions":[["ends-with","$key","k"]]}"#,
            r#"{"expiration":"2030-01-01T00:00:00Z","conditions":[["eq","key","k"]]}"#,
            r#"{"expiration":"2030-01-01T00:00:00Z","conditions":[["content-length-range",-1,5]]}"#,
            r#"{"expiration":"2030-01-01T00:00:00Z","conditions":[{"key":{}}]}"#,
        ] {
            assert_eq!(policy(json).unwrap_err().code, "InvalidPolicyDocument", "{json}");
        }
        assert_eq!(Policy::parse("!").unwrap_err().code, "InvalidPolicyDocument");
    }

    proptest! {
        #[test]
        fn no_policy_panics(json in r#"\{"expiration":"2030-01-01T00:00:00Z","conditions":[\[\]\{\}":,$a-z0-9]{0,40}\}"#) {
            let _ = policy(&json);
        }
    }
}
