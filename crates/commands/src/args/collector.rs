//! The address of a collector of spans.

use std::fmt;

/// The URL at which a collector accepts spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(String);

impl OtlpEndpoint {
    /// Parses a URL; adds `/v1/traces` if it has no path.
    ///
    /// # Errors
    /// If it is not a collector's URL.
    pub fn parse(text: &str) -> Result<Self, String> {
        let hint =
            |reason: &dyn fmt::Display| format!("{reason}; write http://HOST:4318 or https://HOST/v1/traces");
        let uri: http::Uri = text.parse().map_err(|error| hint(&error))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            return Err(hint(&"it does not begin with http:// or https:// and a host"));
        }
        match uri.path() {
            "" | "/" => Ok(Self(format!("{}/v1/traces", text.trim_end_matches('/')))),
            _ => Ok(Self(text.to_owned())),
        }
    }
    /// Returns the URL with its path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_get_the_path_that_collectors_have() {
        let parsed = |text: &str| OtlpEndpoint::parse(text).map(|endpoint| endpoint.0);
        assert_eq!(parsed("http://localhost:4318").unwrap(), "http://localhost:4318/v1/traces");
        assert_eq!(parsed("https://collector/").unwrap(), "https://collector/v1/traces");
        assert_eq!(parsed("https://collector/own/path").unwrap(), "https://collector/own/path");
        for wrong in ["localhost:4318", "grpc://host:4317", "http://", "/v1/traces", "a b"] {
            assert!(parsed(wrong).unwrap_err().contains("4318"), "{wrong}");
        }
    }
}
