{{- define "rockoon.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* The image of a container. List of: root, name without registry and tag, values of the service. */ -}}
{{- define "rockoon.image" -}}
{{- $image := (index . 0).Values.image }}
{{- $name := list $image.registry (index . 1) | compact | join "/" }}
{{- (index . 2).image | default (printf "%s:%s" $name ($image.tag | default (index . 0).Chart.AppVersion)) | quote }}
{{- end }}

{{- /* A service's settings as TOML. List of: root, service, settings of the chart, settings with etcd.tls; in JSON. */ -}}
{{- define "rockoon.settings" -}}
{{- $values := (index . 0).Values }}
{{- $settings := set (index . 2 | fromJson) "cluster" $values.cluster }}
{{- if eq (index . 1) "nameserver" }}
{{- with $values.etcd.endpoints }}{{ $_ := set $settings "etcd" . }}{{ end }}
{{- if $values.etcd.tls }}{{ $settings = mergeOverwrite $settings (index . 3 | fromJson) }}{{ end }}
{{- end }}
{{- $lines := list }}
{{- range $name, $value := mergeOverwrite $settings (index $values (index . 1)).settings }}
{{- $lines = append $lines (printf "%s = %s" $name (toJson $value)) }}
{{- end }}
{{- join "\n" $lines }}
{{- end }}

{{- /* Pods restart when their settings change. List of: root, service. */ -}}
{{- define "rockoon.podAnnotations" -}}
{{- $root := index . 0 }}
{{- $file := printf "%s/settings-%s.yaml" $root.Template.BasePath (index . 1) }}
checksum/settings: {{ (include $file $root | fromYaml).data | toJson | sha256sum }}
{{- with (index $root.Values (index . 1)).podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "rockoon.podLabels" -}}
{{- with .podLabels }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* What values add to a pod. List of: root, values of the service. */ -}}
{{- define "rockoon.pod" -}}
{{- with (index . 0).Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with (index . 1).nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with (index . 1).tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- /* Names of a service's pods as a JSON array; a log with copies has three. List of: root, broker or offset. */ -}}
{{- define "rockoon.pods" -}}
{{- $part := index . 1 }}
{{- $values := index (index . 0).Values $part }}
{{- $pods := list }}
{{- range $log := prepend ($values.logs | default list) "" }}
{{- range $index := until (ternary 3 (int ($values.replicas | default 1)) $values.copies) }}
{{- $pods = append $pods (list "rockoon" $part $log (toString $index) | compact | join "-") }}
{{- end }}
{{- end }}
{{- toJson $pods }}
{{- end }}

{{- /* The port at which clients outside of the cluster call a pod. List of: root, port of the pod. */ -}}
{{- define "rockoon.externalPort" -}}
{{- $route := (index . 0).Values.externalAccess.tlsRoute }}
{{- ternary $route.port (index . 1) $route.enabled }}
{{- end }}

{{- define "rockoon.loadBalancer" -}}
{{- with .Values.externalAccess.loadBalancerSourceRanges }}
loadBalancerSourceRanges: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "rockoon.monitoringLabels" -}}
{{- with .Values.monitoring.labels }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* The names in a service's certificate, as a YAML list. List of: root, service. */ -}}
{{- define "rockoon.certificateNames" -}}
{{- $part := index . 1 }}
{{- $namespace := (index . 0).Release.Namespace }}
{{- $external := (index . 0).Values.externalAccess }}
{{- $names := list }}
{{- if has $part (list "nameserver" "gateway") }}
{{- range $suffix := list "" (print "." $namespace) (printf ".%s.svc" $namespace) (printf ".%s.svc.cluster.local" $namespace) }}
{{- $names = append $names (printf "rockoon-%s%s" $part $suffix) }}
{{- end }}
{{- if ternary $external.enabled (index . 0).Values.gateway.external (eq $part "nameserver") }}
{{- $names = append $names (printf "%s.%s" $part $external.domain) }}
{{- end }}
{{- else }}
{{- $pods := include "rockoon.pods" . | fromJsonArray }}
{{- range $pod := $pods }}
{{- $log := regexReplaceAll "-[0-9]+$" $pod "" }}
{{- /* Copies of a log identify each other by the name of the log. */}}
{{- $names = concat $names (list (printf "%s.%s.%s.svc" $pod $log $namespace) (printf "%s.%s.%s.svc" $log $log $namespace)) }}
{{- end }}
{{- if $external.enabled }}
{{- range $pod := $pods }}{{ $names = append $names (printf "%s.%s" $pod $external.domain) }}{{ end }}
{{- end }}
{{- end }}
{{- toYaml (uniq $names) }}
{{- end }}
