{{- define "striate.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "striate.secrets" -}}
{{- default (printf "%s-id" (include "striate.fullname" .)) .Values.certificates.secretPrefix -}}
{{- end }}

{{/* What selects the pods of a component. Takes (root, component). */}}
{{- define "striate.selector" -}}
app.kubernetes.io/name: striate
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "striate.labels" -}}
{{ include "striate.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* Takes (root, the component's own tag). */}}
{{- define "striate.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.image.repository }}:{{ index . 1 | default $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{/* The engine's URL, from a Secret. */}}
{{- define "striate.metadata" -}}
{{- if not (or .Values.metadata.url .Values.metadata.existingSecret) -}}
{{- fail "metadata.url is missing: give the engine that keeps the metadata, e.g. --set 'metadata.url=etcd://etcd/striate' (or metadata.existingSecret)" -}}
{{- end -}}
- name: STRIATE_METADATA
  valueFrom:
    secretKeyRef:
      name: {{ .Values.metadata.existingSecret | default (printf "%s-metadata" (include "striate.fullname" .)) }}
      key: url
{{- end }}

{{/* What all pods have. Takes (root, the component's values). */}}
{{- define "striate.pod" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
automountServiceAccountToken: false
# Their variables would begin with STRIATE_, as options do.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
# Requests in flight are finished.
terminationGracePeriodSeconds: 60
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What all containers have. Takes (root, the component's values). */}}
{{- define "striate.container" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
image: {{ include "striate.image" (list $root $values.imageTag) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- with $values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Environment of all processes. Takes (root, the component's values). */}}
{{- define "striate.env" -}}
- { name: STRIATE_LOG_FORMAT, value: {{ (index . 0).Values.logFormat | quote }} }
# A directory of the process's own: the volume itself belongs to root.
- { name: STRIATE_RUN_DIR, value: /run/striate/own }
{{- with (index . 1).extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The pods of one component are kept on different nodes, if there are enough. Takes (root, component). */}}
{{- define "striate.apart" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "striate.selector" . | nindent 14 }}
{{- end }}

{{/* The engine's own certificates. */}}
{{- define "striate.engineMount" -}}
{{- if .Values.metadata.filesSecret }}
- { name: engine, mountPath: /etc/striate/engine, readOnly: true }
{{- end }}
{{- end }}
{{- define "striate.engineVolume" -}}
{{- with .Values.metadata.filesSecret }}
- { name: engine, secret: { secretName: {{ . }}, defaultMode: 0440 } }
{{- end }}
{{- end }}
